import { Prisma } from "../database/prisma/client.ts";

/** Life of the hardware, as the database calls it. Only `ready` is for sale. */
export const MACHINE_STATUSES = [
  "planned",
  "staged",
  "ready",
  "maintenance",
  "cleaning",
  "failed",
  "retired",
] as const;
export type MachineStatus = (typeof MACHINE_STATUSES)[number];

/** What the database says about a machine at this moment; derived, never stored. */
export const MACHINE_AVAILABILITIES = ["free", "held", "bound", "not_ready"] as const;
export type MachineAvailability = (typeof MACHINE_AVAILABILITIES)[number];

/** How much of a rack's depth a machine takes, as the database calls it. */
export const MACHINE_DEPTHS = ["half", "full"] as const;
export type MachineDepth = (typeof MACHINE_DEPTHS)[number];

export interface SiteRow {
  readonly id: string;
  readonly code: string;
  readonly name: string;
}

/** A row of the view machine_now. */
export interface MachineRow {
  readonly id: string;
  readonly assetTag: string;
  readonly siteId: string;
  readonly siteCode: string;
  readonly location: string | null;
  readonly manufacturer: string;
  readonly model: string;
  readonly cpuCores: number;
  readonly memoryGib: number;
  readonly storageGib: number;
  readonly labels: readonly string[];
  readonly monthlyPriceCents: number | null;
  readonly status: MachineStatus;
  readonly availability: MachineAvailability;
  /** The hold that stands on it now; null once its deadline has passed. */
  readonly reservationId: string | null;
  readonly heldUntil: Date | null;
  readonly bindingId: string | null;
  /** Rack units that it takes, from its feet up. */
  readonly heightUnits: number;
  /** `full`: it takes the front and the rear. */
  readonly depth: MachineDepth;
  /** What it draws at most; null: not known. */
  readonly powerWatts: number | null;
}

/** The columns of MachineRow, read from machine_now as `m`. */
export const MACHINE_COLUMNS = Prisma.sql`
  m.id, m.asset_tag AS "assetTag", m.site_id AS "siteId", m.site_code AS "siteCode", m.location,
  m.manufacturer, m.model, m.cpu_cores AS "cpuCores", m.memory_gib AS "memoryGib",
  m.storage_gib AS "storageGib", m.labels, m.monthly_price_cents AS "monthlyPriceCents", m.status,
  m.availability, m.reservation_id AS "reservationId", m.held_until AS "heldUntil", m.binding_id AS "bindingId",
  m.height_units AS "heightUnits", m.depth, m.power_watts AS "powerWatts"`;
