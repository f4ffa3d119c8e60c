// The calls of migration rack_operations, whose header states locks, order, and what happens when each
// runs twice. One statement is one transaction.
import type { Db } from "../../database/client.ts";
import { withRetry } from "../../database/violation.ts";
import type { CapacityLimit } from "../capacity.ts";
import type { RackDepth, RackFace, UnitNumbering } from "../rows.ts";

/** What rack_reserve is asked. */
export interface RackReserveCall {
  readonly rackId: string;
  readonly heightUnits: number;
  /** Label of the physically lowest unit; null: the tightest gap that fits. */
  readonly bottomUnit: number | null;
  readonly face: RackFace;
  readonly depth: RackDepth;
  readonly powerWatts: number;
  readonly purpose: string;
  readonly idempotencyKey: string;
  /** The arguments in canonical form. */
  readonly request: Record<string, unknown>;
  readonly holdSeconds: number;
}

/** What rack_reserve answers. */
export interface RackReserveAnswer {
  readonly outcome:
    | "reserved"
    | "key_found"
    | "not_found"
    | "module_disabled"
    | "outside"
    | "occupied"
    | "no_space"
    | "unsettled";
  readonly reservationId: string | null;
  readonly units: readonly number[] | null;
  readonly limits: readonly CapacityLimit[] | null;
}

/** @throws TryAgain when the rack stays locked. */
export async function rackReserveCall(db: Db, call: RackReserveCall): Promise<RackReserveAnswer> {
  const rows = await withRetry(
    () => db.$queryRaw<RackReserveAnswer[]>`
      SELECT a.outcome, a.reservation_id AS "reservationId", a.units, a.limits
      FROM rack_reserve(${call.rackId}::uuid, ${call.heightUnits}::integer, ${call.bottomUnit}::integer, ${call.face}, ${call.depth},
                        ${call.powerWatts}::integer, ${call.purpose}, ${call.idempotencyKey}, ${JSON.stringify(call.request)}::jsonb,
                        ${call.holdSeconds}::integer) a`,
  );
  if (rows[0] === undefined) throw new Error("rack_reserve returned no row");
  return rows[0];
}

/** Why a machine does not fit a place. */
export type Misfit = "site" | "height" | "depth" | "power";

/** What rack_promote answers. */
export interface RackPromoteAnswer {
  readonly outcome:
    | "promoted"
    | "not_found"
    | "machine_not_found"
    | "module_disabled"
    | "settled"
    | "expired"
    | "placed"
    | "misfit";
  readonly placementId: string | null;
  readonly misfits: readonly Misfit[] | null;
}

/** @throws TryAgain when the machine or the rack stays locked. */
export async function rackPromoteCall(
  db: Db,
  reservationId: string,
  machineId: string,
): Promise<RackPromoteAnswer> {
  const rows = await withRetry(
    () => db.$queryRaw<RackPromoteAnswer[]>`
      SELECT a.outcome, a.placement_id AS "placementId", a.misfits
      FROM rack_promote(${reservationId}::uuid, ${machineId}::uuid) a`,
  );
  if (rows[0] === undefined) throw new Error("rack_promote returned no row");
  return rows[0];
}

/** @throws TryAgain when the rack stays locked. */
export async function rackCancelCall(
  db: Db,
  reservationId: string,
): Promise<"cancelled" | "not_found" | "settled" | "expired"> {
  const rows = await withRetry(
    () => db.$queryRaw<{ outcome: "cancelled" | "not_found" | "settled" | "expired" }[]>`
      SELECT rack_cancel(${reservationId}::uuid) AS outcome`,
  );
  return rows[0]?.outcome ?? "not_found";
}

/** @throws TryAgain when the machine or the rack stays locked. */
export async function placementRemoveCall(
  db: Db,
  placementId: string,
): Promise<"removed" | "already_removed" | "not_found"> {
  const rows = await withRetry(
    () => db.$queryRaw<{ outcome: "removed" | "already_removed" | "not_found" }[]>`
      SELECT placement_remove(${placementId}::uuid) AS outcome`,
  );
  return rows[0]?.outcome ?? "not_found";
}

/** One move: where a placement is to go. */
export interface PlacementMove {
  readonly placementId: string;
  readonly rackId: string;
  /** Label of the physically lowest unit in the new rack. */
  readonly bottomUnit: number;
  readonly face: RackFace;
}

/** What placements_move answers. */
export interface PlacementMoveAnswer {
  readonly outcome: "moved" | "not_found" | "module_disabled" | "outside" | "occupied" | "misfit" | "power";
  /** Which moves stand in the way, counted from 0. */
  readonly moves: readonly number[] | null;
  readonly units: readonly number[] | null;
}

/** @throws TryAgain when a machine or a rack stays locked. */
export async function placementsMoveCall(
  db: Db,
  moves: readonly PlacementMove[],
): Promise<PlacementMoveAnswer> {
  const wanted = JSON.stringify(
    moves.map(({ placementId, rackId, bottomUnit, face }) => ({
      placement: placementId,
      rack: rackId,
      bottom: bottomUnit,
      face,
    })),
  );
  const rows = await withRetry(
    () => db.$queryRaw<PlacementMoveAnswer[]>`
      SELECT a.outcome, a.moves, a.units FROM placements_move(${wanted}::jsonb) a`,
  );
  if (rows[0] === undefined) throw new Error("placements_move returned no row");
  return rows[0];
}

/** What an edit of geometry answers. */
export interface GeometryAnswer {
  readonly outcome: "set" | "not_found" | "name_taken" | "conflict";
  /** The rows that would not fit any more. */
  readonly conflicts: readonly string[] | null;
  readonly lacking: readonly ("units" | "power")[] | null;
}

/** What of a rack is to change; undefined keeps it. */
export interface RackEdit {
  readonly rackId: string;
  readonly name: string | undefined;
  readonly heightUnits: number | undefined;
  readonly numbering: UnitNumbering | undefined;
  readonly startingUnit: number | undefined;
  /** null: no budget any more. */
  readonly powerBudgetWatts: number | null | undefined;
}

/** @throws TryAgain when the rack stays locked. */
export async function rackEditCall(db: Db, edit: RackEdit): Promise<GeometryAnswer> {
  const rows = await withRetry(
    () => db.$queryRaw<GeometryAnswer[]>`
      SELECT a.outcome, a.conflicts, a.lacking
      FROM rack_edit(${edit.rackId}::uuid, ${edit.name ?? null}::text, ${edit.heightUnits ?? null}::integer,
                     ${edit.numbering ?? null}::text, ${edit.startingUnit ?? null}::integer,
                     ${edit.powerBudgetWatts !== undefined}::boolean, ${edit.powerBudgetWatts ?? null}::integer) a`,
  );
  if (rows[0] === undefined) throw new Error("rack_edit returned no row");
  return rows[0];
}

/** What of a machine's geometry is to change; undefined keeps it. */
export interface MachineGeometryEdit {
  readonly machineId: string;
  readonly heightUnits: number | undefined;
  readonly depth: RackDepth | undefined;
  /** null: not known any more. */
  readonly powerWatts: number | null | undefined;
}

/** @throws TryAgain when the machine or its rack stays locked. */
export async function machineGeometryCall(db: Db, edit: MachineGeometryEdit): Promise<GeometryAnswer> {
  const rows = await withRetry(
    () => db.$queryRaw<GeometryAnswer[]>`
      SELECT a.outcome, a.conflicts, a.lacking
      FROM machine_edit_geometry(${edit.machineId}::uuid, ${edit.heightUnits ?? null}::integer, ${edit.depth ?? null}::text,
                                 ${edit.powerWatts !== undefined}::boolean, ${edit.powerWatts ?? null}::integer) a`,
  );
  if (rows[0] === undefined) throw new Error("machine_edit_geometry returned no row");
  return rows[0];
}
