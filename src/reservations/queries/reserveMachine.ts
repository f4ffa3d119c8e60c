// Calls reserve_machine (migration reserve_machine; its header states locks, order, and what happens
// when it runs twice). One statement is one transaction: nothing of this process can come between,
// and no connection is held while this process thinks.
import { type Db, statementRun } from "../../database/client.ts";
import type { AllocationChoice, ReservationRow } from "../rows.ts";

/** What the function is asked. */
export interface ReserveMachineCall {
  readonly organizationId: string;
  readonly orderReference: string;
  readonly idempotencyKey: string;
  /** Canonical requirements (requirementsCanonical). */
  readonly requirements: Record<string, unknown>;
  readonly holdSeconds: number;
  readonly holdLimit: number;
  readonly coolDownSeconds: number;
}

/** What the function answers. */
export type ReserveMachineAnswer =
  | { readonly outcome: "reserved"; readonly reservation: ReservationRow }
  | { readonly outcome: "key_found"; readonly reservationId: string }
  | { readonly outcome: "unknown_organization" }
  | { readonly outcome: "module_disabled" }
  | { readonly outcome: "hold_limit"; readonly limit: number }
  | { readonly outcome: "cooling_down"; readonly retryAt: Date; readonly retryAfterMs: number }
  | {
      readonly outcome: "nothing_won";
      readonly skipped: number;
      readonly lostRaces: number;
      /** The walk ended at one of its bounds, not at the end of the shelf. */
      readonly cutOff: boolean;
    };

interface Row {
  readonly outcome: ReserveMachineAnswer["outcome"];
  readonly reservation: {
    readonly id: string;
    readonly organization_id: string;
    readonly machine_id: string;
    readonly order_reference: string;
    readonly idempotency_key: string;
    readonly held_at: string;
    readonly expires_at: string;
    readonly choice: AllocationChoice;
  } | null;
  readonly found_id: string | null;
  readonly skipped: number;
  readonly lost_races: number;
  readonly cut_off: boolean;
  readonly hold_limit: number | null;
  readonly retry_at: Date | null;
  readonly retry_after_ms: number | null;
}

/** Tries to reserve; see the migration for each outcome. */
export async function reserveMachineCall(db: Db, call: ReserveMachineCall): Promise<ReserveMachineAnswer> {
  const rows = await statementRun<Row>(
    db,
    "reserve_machine",
    `SELECT a.*, ceil(extract(epoch FROM a.retry_at - clock_timestamp()) * 1000)::float8 AS retry_after_ms
     FROM reserve_machine($1::uuid, $2::text, $3::text, $4::jsonb, $5::integer, $6::integer, $7::integer) a`,
    [
      call.organizationId,
      call.orderReference,
      call.idempotencyKey,
      JSON.stringify(call.requirements),
      call.holdSeconds,
      call.holdLimit,
      call.coolDownSeconds,
    ],
  );
  const row = rows[0];
  if (row === undefined) throw new Error("reserve_machine returned no row");
  switch (row.outcome) {
    case "reserved":
      return { outcome: "reserved", reservation: reservationOf(given(row.reservation)) };
    case "key_found":
      return { outcome: "key_found", reservationId: given(row.found_id) };
    case "hold_limit":
      return { outcome: "hold_limit", limit: given(row.hold_limit) };
    case "cooling_down":
      return {
        outcome: "cooling_down",
        retryAt: given(row.retry_at),
        retryAfterMs: Math.max(1, given(row.retry_after_ms)),
      };
    case "nothing_won":
      return { outcome: "nothing_won", skipped: row.skipped, lostRaces: row.lost_races, cutOff: row.cut_off };
    default:
      return { outcome: row.outcome };
  }
}

function reservationOf(json: NonNullable<Row["reservation"]>): ReservationRow {
  return {
    id: json.id,
    organizationId: json.organization_id,
    machineId: json.machine_id,
    orderReference: json.order_reference,
    idempotencyKey: json.idempotency_key,
    state: "held",
    heldAt: new Date(json.held_at),
    expiresAt: new Date(json.expires_at),
    settledAt: null,
    cancellationReason: null,
    choice: json.choice,
  };
}

function given<Value>(value: Value | null): Value {
  if (value === null) throw new Error("reserve_machine left out what its outcome promises");
  return value;
}
