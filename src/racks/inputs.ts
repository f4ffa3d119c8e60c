import { z } from "zod";
import { globalIdOf } from "../graphql/globalId.ts";
import { optional, text, wholeNumber } from "../graphql/input.ts";
import { heightUnits, powerWatts } from "../inventory/inputs.ts";
import { MACHINE_DEPTHS } from "../inventory/rows.ts";
import { RACK_FACES, UNIT_NUMBERINGS } from "./rows.ts";

const siteCode = text(50);
const rackHeight = wholeNumber(1, 100);
const startingUnit = wholeNumber(0, 1000);
/** A label of a unit; whether the rack has it is asked later. */
const label = wholeNumber(0, 2000);

export const createRackInput = z.object({
  siteCode,
  name: text(100),
  heightUnits: rackHeight,
  numbering: optional(z.enum(UNIT_NUMBERINGS)),
  startingUnit: optional(startingUnit),
  powerBudgetWatts: optional(powerWatts),
});
export const reserveRackUnitsInput = z.object({
  rackId: globalIdOf("Rack"),
  heightUnits,
  bottomUnit: optional(label),
  face: optional(z.enum(RACK_FACES)),
  depth: optional(z.enum(MACHINE_DEPTHS)),
  powerWatts: optional(powerWatts),
  purpose: text(500),
  idempotencyKey: text(200),
});
export const promoteRackReservationInput = z.object({
  rackReservationId: globalIdOf("RackReservation"),
  machineId: globalIdOf("Machine"),
});
export const cancelRackReservationInput = z.object({ rackReservationId: globalIdOf("RackReservation") });
export const removePlacementInput = z.object({ placementId: globalIdOf("Placement") });
export const movePlacementsInput = z.object({
  moves: z
    .array(
      z.object({
        placementId: globalIdOf("Placement"),
        rackId: globalIdOf("Rack"),
        bottomUnit: label,
        face: optional(z.enum(RACK_FACES)),
      }),
    )
    .min(1, "must have at least 1 entry")
    .max(200, "must have at most 200 entries")
    .refine((moves) => new Set(moves.map((move) => move.placementId)).size === moves.length, {
      error: "must name each placement once",
    }),
});
/** Left out keeps a value; null is refused, except for the budget, which it takes away. */
export const updateRackInput = z.object({
  rackId: globalIdOf("Rack"),
  name: text(100).optional(),
  heightUnits: rackHeight.optional(),
  numbering: z.enum(UNIT_NUMBERINGS).optional(),
  startingUnit: startingUnit.optional(),
  powerBudgetWatts: powerWatts.nullable().optional(),
});
/** Left out keeps a value; null is refused, except for the draw, which is not known then. */
export const setMachineGeometryInput = z.object({
  machineId: globalIdOf("Machine"),
  heightUnits: heightUnits.optional(),
  depth: z.enum(MACHINE_DEPTHS).optional(),
  powerWatts: powerWatts.nullable().optional(),
});
export const racksFilter = z.object({ siteCode: optional(siteCode) });
export const placeKind = z.object({
  heightUnits,
  powerWatts,
  face: optional(z.enum(RACK_FACES)),
  depth: optional(z.enum(MACHINE_DEPTHS)),
});
export const rackSpaceArguments = placeKind.extend({ siteCode, powerWatts: optional(powerWatts) });
