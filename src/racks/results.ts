import type { ModuleDisabled } from "../access/results.ts";
import type { SiteNotFound } from "../inventory/results.ts";
import type { NextAction, Refusal } from "../refusal.ts";
import type { IdempotencyKeyReused } from "../reservations/results.ts";
import type { CapacityLimit } from "./capacity.ts";
import type { Misfit } from "./queries/operations.ts";
import type { RackReservationRow, RackRow } from "./rows.ts";

/** The rack exists now. */
export interface RackCreated {
  readonly kind: "RackCreated";
  readonly rack: RackRow;
}
/** The site has a rack of this name. */
export interface RackNameTaken extends Refusal<"RackNameTaken"> {
  readonly name: string;
}
/** What became of createRack. */
export type CreateRackResult = RackCreated | RackNameTaken | SiteNotFound;

/** The units are kept until the hold's deadline. */
export interface RackUnitsReserved {
  readonly kind: "RackUnitsReserved";
  readonly rackReservation: RackReservationRow;
}
/** Units that were asked for are somebody else's. */
export interface UnitsOccupied extends Refusal<"UnitsOccupied"> {
  /** As labelled. */
  readonly units: readonly number[];
}
/** The rack takes no such placement. */
export interface NoSpaceInRack extends Refusal<"NoSpaceInRack"> {
  readonly limitedBy: readonly CapacityLimit[];
  readonly rackId: string;
}
/** The key has a reservation already (HELD or PROMOTED). */
export interface UnitsAlreadyReserved extends Refusal<"UnitsAlreadyReserved"> {
  readonly rackReservation: RackReservationRow;
}
/** No such rack. */
export type RackNotFound = Refusal<"RackNotFound">;
/** The hold ran out. */
export interface RackReservationExpired extends Refusal<"RackReservationExpired"> {
  readonly rackReservation: RackReservationRow;
}
/** The reservation has ended otherwise: promoted or cancelled. */
export interface RackReservationSettled extends Refusal<"RackReservationSettled"> {
  readonly rackReservation: RackReservationRow;
}
/** What became of reserveRackUnits. */
export type ReserveRackUnitsResult =
  | RackUnitsReserved
  | UnitsOccupied
  | NoSpaceInRack
  | UnitsAlreadyReserved
  | RackReservationExpired
  | RackReservationSettled
  | IdempotencyKeyReused
  | RackNotFound
  | ModuleDisabled;

/** The machine is installed where the units were held; it is the same row. */
export interface RackReservationPromoted {
  readonly kind: "RackReservationPromoted";
  readonly rackReservation: RackReservationRow;
}
/** No such reservation. */
export type RackReservationNotFound = Refusal<"RackReservationNotFound">;
/** The machine stands in a rack already. */
export interface MachineAlreadyPlaced extends Refusal<"MachineAlreadyPlaced"> {
  readonly placement: RackReservationRow;
}
/** No such machine. */
export type MachineNotFound = Refusal<"MachineNotFound">;
/** The machine does not fit the place. */
export interface MachineDoesNotFit extends Refusal<"MachineDoesNotFit"> {
  readonly misfits: readonly Misfit[];
}
/** What became of promoteRackReservation. */
export type PromoteRackReservationResult =
  | RackReservationPromoted
  | RackReservationExpired
  | RackReservationSettled
  | RackReservationNotFound
  | MachineAlreadyPlaced
  | MachineNotFound
  | MachineDoesNotFit
  | ModuleDisabled;

/** The units are free again. */
export interface RackReservationCancelled {
  readonly kind: "RackReservationCancelled";
  readonly rackReservation: RackReservationRow;
}
/** What became of cancelRackReservation. */
export type CancelRackReservationResult =
  | RackReservationCancelled
  | RackReservationSettled
  | RackReservationExpired
  | RackReservationNotFound;

/** The machine stands there no more; the row says until when it did. */
export interface PlacementRemoved {
  readonly kind: "PlacementRemoved";
  readonly placement: RackReservationRow;
}
/** The machine was taken out before. */
export interface PlacementAlreadyRemoved extends Refusal<"PlacementAlreadyRemoved"> {
  readonly placement: RackReservationRow;
}
/** No such placement, or not one that still stands. */
export interface PlacementNotFound extends Refusal<"PlacementNotFound"> {
  /** Which moves name it, counted from 0; empty where one placement was named. */
  readonly moves: readonly number[];
}
/** What became of removePlacement. */
export type RemovePlacementResult = PlacementRemoved | PlacementAlreadyRemoved | PlacementNotFound;

/** Every placement stands where it was to go. */
export interface PlacementsMoved {
  readonly kind: "PlacementsMoved";
  readonly placements: readonly RackReservationRow[];
}
/** A rack's power budget would not do for what was to be moved into it. */
export type PowerBudgetExceeded = Refusal<"PowerBudgetExceeded">;
/** What became of movePlacements. */
export type MovePlacementsResult =
  | PlacementsMoved
  | UnitsOccupied
  | PlacementNotFound
  | MachineDoesNotFit
  | PowerBudgetExceeded
  | ModuleDisabled;

/** What stands, or is reserved, would not fit any more; nothing was changed. */
export interface GeometryConflict extends Refusal<"GeometryConflict"> {
  /** Rows of installed machines and of holds. */
  readonly rows: readonly RackReservationRow[];
}
/** The rack is as asked. */
export interface RackUpdated {
  readonly kind: "RackUpdated";
  readonly rack: RackRow;
}
/** What became of updateRack. */
export type UpdateRackResult = RackUpdated | RackNotFound | RackNameTaken | GeometryConflict;
/** The machine's geometry is as asked, and its place has grown with it. */
export interface MachineGeometrySet {
  readonly kind: "MachineGeometrySet";
  readonly machineId: string;
}
/** What became of setMachineGeometry. */
export type SetMachineGeometryResult = MachineGeometrySet | MachineNotFound | GeometryConflict;

function refusal<Kind extends string>(kind: Kind, nextAction: NextAction, message: string): Refusal<Kind> {
  return { kind, message, nextAction, retryAfterMs: null };
}

export function rackNameTaken(name: string): RackNameTaken {
  return {
    ...refusal(
      "RackNameTaken",
      "RENAME",
      `The site has a rack named "${name}" already. Use it, or choose another name.`,
    ),
    name,
  };
}

export function rackNotFound(): RackNotFound {
  return refusal(
    "RackNotFound",
    "FIX_REQUEST",
    "There is no such rack. Nothing was changed; check the id, or list `racks`.",
  );
}

export function unitsOccupied(units: readonly number[]): UnitsOccupied {
  return {
    ...refusal(
      "UnitsOccupied",
      "FIX_REQUEST",
      `These units are taken: ${units.join(", ")}. Nothing was changed. Choose others, or leave bottomUnit out and let the tightest gap be found.`,
    ),
    units,
  };
}

const LIMIT_WORDS: Record<CapacityLimit, string> = {
  no_free_units: "too few units are free",
  not_contiguous: "enough units are free, but not in one piece",
  power_budget: "its power budget would not do",
};

export function noSpaceInRack(rackId: string, limitedBy: readonly CapacityLimit[]): NoSpaceInRack {
  return {
    ...refusal(
      "NoSpaceInRack",
      "BUY_MORE",
      `The rack takes no such placement: ${limitedBy.map((limit) => LIMIT_WORDS[limit]).join(", and ")}. Nothing was reserved. Look for another rack with rackSpace.`,
    ),
    rackId,
    limitedBy,
  };
}

export function unitsAlreadyReserved(rackReservation: RackReservationRow): UnitsAlreadyReserved {
  const what =
    rackReservation.state === "promoted"
      ? "and a machine was installed there"
      : `which is held until ${rackReservation.expiresAt.toISOString()}`;
  return {
    ...refusal(
      "UnitsAlreadyReserved",
      "USE_EXISTING",
      `This idempotency key already has a reservation, ${what}. Use that one; no other units were taken. For more units, use a new key.`,
    ),
    rackReservation,
  };
}

export function rackReservationExpired(rackReservation: RackReservationRow): RackReservationExpired {
  return {
    ...refusal(
      "RackReservationExpired",
      "START_OVER",
      `The hold ran out at ${rackReservation.expiresAt.toISOString()}, and its units may be somebody else's now. Install nothing there; reserve again with a new idempotency key.`,
    ),
    rackReservation,
  };
}

export function rackReservationSettled(rackReservation: RackReservationRow): RackReservationSettled {
  return rackReservation.state === "promoted"
    ? {
        ...refusal(
          "RackReservationSettled",
          "USE_EXISTING",
          "A machine was installed on this reservation already. To take it out, remove its placement.",
        ),
        rackReservation,
      }
    : {
        ...refusal(
          "RackReservationSettled",
          "START_OVER",
          "The reservation was cancelled and stays so. Reserve again with a new idempotency key.",
        ),
        rackReservation,
      };
}

export function rackReservationNotFound(): RackReservationNotFound {
  return refusal(
    "RackReservationNotFound",
    "FIX_REQUEST",
    "There is no such rack reservation. Nothing was changed; check the id.",
  );
}

export function machineAlreadyPlaced(placement: RackReservationRow): MachineAlreadyPlaced {
  return {
    ...refusal(
      "MachineAlreadyPlaced",
      "FIX_REQUEST",
      "The machine stands in a rack already. Remove that placement first, or move it with movePlacements.",
    ),
    placement,
  };
}

export function machineNotFound(): MachineNotFound {
  return refusal(
    "MachineNotFound",
    "FIX_REQUEST",
    "There is no such machine. Nothing was changed; check the id.",
  );
}

const MISFIT_WORDS: Record<Misfit, string> = {
  site: "it stands at another site than the rack",
  height: "it is higher than the units that are kept",
  depth: "it is of full depth, and one face only is kept",
  power: "the rack's power budget would not do for what it draws",
};

export function machineDoesNotFit(misfits: readonly Misfit[]): MachineDoesNotFit {
  return {
    ...refusal(
      "MachineDoesNotFit",
      "FIX_REQUEST",
      `The machine does not fit: ${misfits.map((misfit) => MISFIT_WORDS[misfit]).join(", and ")}. Nothing was changed.`,
    ),
    misfits,
  };
}

export function placementAlreadyRemoved(placement: RackReservationRow): PlacementAlreadyRemoved {
  return {
    ...refusal(
      "PlacementAlreadyRemoved",
      "USE_EXISTING",
      `The machine was taken out already${placement.removedAt === null ? "" : `, at ${placement.removedAt.toISOString()}`}. There is nothing to do.`,
    ),
    placement,
  };
}

export function placementNotFound(moves: readonly number[] = []): PlacementNotFound {
  return {
    ...refusal(
      "PlacementNotFound",
      "FIX_REQUEST",
      moves.length === 0
        ? "There is no such placement. Nothing was changed; check the id."
        : `These moves name a placement or a rack that is not there, or a machine that was taken out (counted from 0): ${moves.join(", ")}. Nothing was moved.`,
    ),
    moves,
  };
}

export function powerBudgetExceeded(): PowerBudgetExceeded {
  return refusal(
    "PowerBudgetExceeded",
    "FIX_REQUEST",
    "The power budget of a rack would not do for what was to be moved into it. Nothing was moved.",
  );
}

export function geometryConflict(
  rows: readonly RackReservationRow[],
  lacking: readonly ("units" | "power")[],
): GeometryConflict {
  const what = lacking
    .map((each) => (each === "units" ? "have no room" : "have no power budget"))
    .join(" and ");
  return {
    ...refusal(
      "GeometryConflict",
      "FIX_REQUEST",
      `${rows.length} installed machines or reservations would ${what} any more, and are listed. Nothing was changed. Move or remove them first.`,
    ),
    rows,
  };
}
