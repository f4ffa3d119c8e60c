import { Prisma } from "../database/prisma/client.ts";
import type { ReservationState } from "./states.ts";

/** The machine as it was when it was chosen, and why it was; frozen in the row. */
export interface AllocationChoice {
  readonly rank: number;
  readonly skipped: number;
  readonly lostRaces: number;
  readonly assetTag: string;
  readonly siteCode: string;
  readonly manufacturer: string;
  readonly model: string;
  readonly cpuCores: number;
  readonly memoryGib: number;
  readonly storageGib: number;
  readonly labels: readonly string[];
  readonly explanation: string;
}

/** A row of the view reservation_now: a hold past its deadline reads `expired`. */
export interface ReservationRow {
  readonly id: string;
  readonly organizationId: string;
  readonly machineId: string;
  readonly orderReference: string;
  readonly idempotencyKey: string;
  readonly state: ReservationState;
  readonly heldAt: Date;
  readonly expiresAt: Date;
  readonly settledAt: Date | null;
  readonly cancellationReason: string | null;
  readonly choice: AllocationChoice;
}

/** The columns of ReservationRow, read from reservation_now as `r`. */
export const RESERVATION_COLUMNS = Prisma.sql`
  r.id, r.organization_id AS "organizationId", r.machine_id AS "machineId",
  r.order_reference AS "orderReference", r.idempotency_key AS "idempotencyKey", r.state,
  r.held_at AS "heldAt", r.expires_at AS "expiresAt", r.settled_at AS "settledAt",
  r.cancellation_reason AS "cancellationReason", r.choice`;

export interface BindingRow {
  readonly id: string;
  readonly reservationId: string;
  readonly organizationId: string;
  readonly machineId: string;
  readonly serviceReference: string;
  readonly boundAt: Date;
  readonly releasedAt: Date | null;
}

/** The columns of BindingRow, read from service_binding as `b`. */
export const BINDING_COLUMNS = Prisma.sql`
  b.id, b.reservation_id AS "reservationId", b.organization_id AS "organizationId",
  b.machine_id AS "machineId", b.service_reference AS "serviceReference", b.bound_at AS "boundAt",
  b.released_at AS "releasedAt"`;
