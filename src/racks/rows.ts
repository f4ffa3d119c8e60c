import { Prisma } from "../database/prisma/client.ts";
import type { MachineDepth } from "../inventory/rows.ts";

/** Sides of a rack, as the database calls them. */
export const RACK_FACES = ["front", "rear"] as const;
export type RackFace = (typeof RACK_FACES)[number];

/** `full` takes the front and the rear of its units. */
export type RackDepth = MachineDepth;

/** Which way the labels of a rack count. */
export const UNIT_NUMBERINGS = ["bottom_up", "top_down"] as const;
export type UnitNumbering = (typeof UNIT_NUMBERINGS)[number];

/** What a rack reservation can be. Only `held` and an installed `promoted` take units away. */
export const RACK_RESERVATION_STATES = ["held", "promoted", "expired", "cancelled"] as const;
export type RackReservationState = (typeof RACK_RESERVATION_STATES)[number];

/** A rack as its row stands. */
export interface RackRow {
  readonly id: string;
  readonly siteId: string;
  readonly name: string;
  readonly heightUnits: number;
  readonly numbering: UnitNumbering;
  /** The label with which counting begins. */
  readonly startingUnit: number;
  /** null: no budget. */
  readonly powerBudgetWatts: number | null;
}

/** The columns of RackRow, read from rack as `r`. */
export const RACK_COLUMNS = Prisma.sql`
  r.id, r.site_id AS "siteId", r.name, r.height_units AS "heightUnits", r.numbering,
  r.starting_unit AS "startingUnit", r.power_budget_watts AS "powerBudgetWatts"`;

/** A row of the view rack_reservation_now: a hold past its deadline reads `expired`. */
export interface RackReservationRow {
  readonly id: string;
  readonly rackId: string;
  /** Label of the physically lowest unit. */
  readonly bottomLabel: number;
  /** Physically, from 1 at the bottom. */
  readonly bottomUnit: number;
  readonly heightUnits: number;
  readonly face: RackFace;
  readonly depth: RackDepth;
  readonly powerWatts: number;
  readonly purpose: string;
  readonly state: RackReservationState;
  readonly heldAt: Date;
  readonly expiresAt: Date;
  readonly settledAt: Date | null;
  readonly machineId: string | null;
  readonly removedAt: Date | null;
}

/** The columns of RackReservationRow, read from rack_reservation_now as `o` joined with its rack as `r`. */
export const RACK_RESERVATION_COLUMNS = Prisma.sql`
  o.id, o.rack_id AS "rackId", rack_label(r, o.bottom_unit) AS "bottomLabel", o.bottom_unit AS "bottomUnit",
  o.height_units AS "heightUnits", o.face, o.depth, o.power_watts AS "powerWatts", o.purpose, o.state,
  o.held_at AS "heldAt", o.expires_at AS "expiresAt", o.settled_at AS "settledAt", o.machine_id AS "machineId",
  o.removed_at AS "removedAt"`;

/** The label of a physical unit. */
export function labelOf(rack: RackRow, unit: number): number {
  return rack.numbering === "bottom_up"
    ? rack.startingUnit + unit - 1
    : rack.startingUnit + rack.heightUnits - unit;
}
