import { ModuleDisabledRef } from "../access/graphql.ts";
import { OPERATORS } from "../access/viewer.ts";
import { builder } from "../graphql/builder.ts";
import type { GraphContext } from "../graphql/context.ts";
import { inputParse } from "../graphql/input.ts";
import { RefusalRef } from "../graphql/refusal.ts";
import { vouched } from "../graphql/vouched.ts";
import { MachineRef, RackDepthRef, SiteNotFoundRef, SiteRef } from "../inventory/graphql.ts";
import { IdempotencyKeyReusedRef } from "../reservations/graphql.ts";
import { rackReservationCancel } from "./cancelRackReservation.ts";
import { freeWatts, type SellableCapacity, sellableIn, unitsOf } from "./capacity.ts";
import { rackCreate } from "./createRack.ts";
import { elevationOf, type RackUnit } from "./elevation.ts";
import { machineGeometrySet, rackUpdate } from "./geometry.ts";
import {
  cancelRackReservationInput,
  createRackInput,
  movePlacementsInput,
  placeKind,
  promoteRackReservationInput,
  rackSpaceArguments,
  racksFilter,
  removePlacementInput,
  reserveRackUnitsInput,
  setMachineGeometryInput,
  updateRackInput,
} from "./inputs.ts";
import { placementRemove, placementsMove } from "./placements.ts";
import { rackReservationPromote } from "./promoteRackReservation.ts";
import { type RackSpace, rackSpaces, racksList } from "./queries/racks.ts";
import { rackUnitsReserve } from "./reserveRackUnits.ts";
import type {
  GeometryConflict,
  MachineAlreadyPlaced,
  MachineDoesNotFit,
  MachineGeometrySet,
  MachineNotFound,
  NoSpaceInRack,
  PlacementAlreadyRemoved,
  PlacementNotFound,
  PlacementRemoved,
  PlacementsMoved,
  PowerBudgetExceeded,
  RackCreated,
  RackNameTaken,
  RackNotFound,
  RackReservationCancelled,
  RackReservationExpired,
  RackReservationNotFound,
  RackReservationPromoted,
  RackReservationSettled,
  RackUnitsReserved,
  RackUpdated,
  UnitsAlreadyReserved,
  UnitsOccupied,
} from "./results.ts";
import type { RackReservationRow, RackRow } from "./rows.ts";

const RackFaceRef = builder.enumType("RackFace", {
  description: "A side of a rack.",
  values: {
    FRONT: { value: "front", description: "The front." },
    REAR: { value: "rear", description: "The rear." },
  } as const,
});
const UnitNumberingRef = builder.enumType("UnitNumbering", {
  description: "Which way the labels of a rack count.",
  values: {
    BOTTOM_UP: { value: "bottom_up", description: "The lowest unit has the smallest number." },
    TOP_DOWN: { value: "top_down", description: "The highest unit has the smallest number." },
  } as const,
});
const RackUnitStateRef = builder.enumType("RackUnitState", {
  description: "What is in a unit of a face.",
  values: {
    FREE: { value: "free", description: "Nothing." },
    RESERVED: { value: "reserved", description: "It is held for somebody." },
    INSTALLED: { value: "installed", description: "A machine stands there." },
  } as const,
});
const RackReservationStateRef = builder.enumType("RackReservationState", {
  description: "A rack reservation's life: HELD, then one of the others for good.",
  values: {
    HELD: { value: "held", description: "The units are kept until `expiresAt`." },
    PROMOTED: { value: "promoted", description: "A machine was installed there: the row is a placement." },
    EXPIRED: { value: "expired", description: "The deadline passed: a time-out." },
    CANCELLED: { value: "cancelled", description: "Somebody ended it: a decision." },
  } as const,
});
const CapacityLimitRef = builder.enumType("CapacityLimit", {
  description: "What keeps one more placement out of a rack.",
  values: {
    NO_FREE_UNITS: { value: "no_free_units", description: "Too few units are free." },
    NOT_CONTIGUOUS: { value: "not_contiguous", description: "Enough units are free, but not in one piece." },
    POWER_BUDGET: { value: "power_budget", description: "The power budget would not do." },
  } as const,
});
const MisfitRef = builder.enumType("MachineMisfit", {
  description: "Why a machine does not fit a place.",
  values: {
    SITE: { value: "site", description: "It stands at another site than the rack." },
    HEIGHT: { value: "height", description: "It is higher than the place." },
    DEPTH: { value: "depth", description: "It is of full depth, and the place is not." },
    POWER: { value: "power", description: "The rack's power budget would not do for what it draws." },
  } as const,
});

const RackRef = builder.objectRef<RackRow>("Rack");
const RackReservationRef = builder.objectRef<RackReservationRow>("RackReservation");
const PlacementRef = builder.objectRef<RackReservationRow>("Placement");

const rackOf = async (row: RackReservationRow, context: GraphContext) =>
  vouched(await context.loaders.rack.load(row.rackId));
const machineOf = async (machineId: string | null, context: GraphContext) =>
  vouched(machineId === null ? null : await context.loaders.machine.load(machineId));

const SellableCapacityRef = builder.objectRef<SellableCapacity>("SellableCapacity").implement({
  description: "Placements that would really succeed now, one after the other.",
  fields: (t) => ({
    placements: t.exposeInt("placements", { description: "How many." }),
    limitedBy: t.field({
      type: [CapacityLimitRef],
      description: "What would keep out the next one.",
      resolve: (capacity) => [...capacity.limitedBy],
    }),
  }),
});

const RackCapacityRef = builder.objectRef<RackRow>("RackCapacity").implement({
  description:
    "What is left of a rack. Free units are not the same as sellable capacity: a unit counts as free when both of its faces are.",
  fields: (t) => ({
    freeUnits: t.int({
      description: "Units whose front and rear are both free.",
      resolve: async (rack, _args, { loaders }) =>
        (await loaders.rackGaps.load({ rackId: rack.id, face: "front", depth: "full" })).reduce(
          (sum, size) => sum + size,
          0,
        ),
    }),
    largestContiguousUnits: t.int({
      description: "The longest stretch of such units.",
      resolve: async (rack, _args, { loaders }) =>
        Math.max(0, ...(await loaders.rackGaps.load({ rackId: rack.id, face: "front", depth: "full" }))),
    }),
    reservedUnits: t.int({
      description: "Units of which at least one face is held.",
      resolve: async (rack, _args, { loaders }) =>
        unitsOf((await loaders.rackOccupants.load(rack.id)).filter((row) => row.state === "held")),
    }),
    installedUnits: t.int({
      description: "Units with a machine on at least one face.",
      resolve: async (rack, _args, { loaders }) =>
        unitsOf((await loaders.rackOccupants.load(rack.id)).filter((row) => row.state === "promoted")),
    }),
    powerFreeWatts: t.int({
      nullable: true,
      description: "What may still be drawn, in watts; null: no budget.",
      resolve: async (rack, _args, { loaders }) => freeWatts(rack, await loaders.rackOccupants.load(rack.id)),
    }),
    sellable: t.field({
      type: SellableCapacityRef,
      description:
        "Placements of the given kind that would really succeed now, and what limits them. Full depth, unless said otherwise.",
      args: {
        heightUnits: t.arg.int({ required: true, defaultValue: 1, description: "Height of each, 1 to 100." }),
        powerWatts: t.arg.int({ required: true, defaultValue: 0, description: "Draw of each, in watts." }),
        face: t.arg({ type: RackFaceRef, description: "For HALF depth: on which face. Left out: FRONT." }),
        depth: t.arg({ type: RackDepthRef, description: "Left out: FULL." }),
      },
      resolve: async (rack, args, { loaders }) => {
        const kind = inputParse(placeKind, args, "");
        const [gaps, occupants] = await Promise.all([
          loaders.rackGaps.load({
            rackId: rack.id,
            face: kind.face ?? "front",
            depth: kind.depth ?? "full",
          }),
          loaders.rackOccupants.load(rack.id),
        ]);
        return sellableIn(gaps, freeWatts(rack, occupants), kind.heightUnits, kind.powerWatts);
      },
    }),
  }),
});

const RackUnitRef = builder.objectRef<RackUnit>("RackUnit").implement({
  description: "One unit of one face.",
  fields: (t) => ({
    unit: t.exposeInt("unit", { description: "Its number, as the rack is labelled." }),
    state: t.field({ type: RackUnitStateRef, description: "What is in it.", resolve: (unit) => unit.state }),
    machine: t.field({
      type: MachineRef,
      nullable: true,
      description: "The machine that stands there.",
      resolve: (unit, _args, context) =>
        unit.state === "installed" ? machineOf(unit.occupant?.machineId ?? null, context) : null,
    }),
    rackReservation: t.field({
      type: RackReservationRef,
      nullable: true,
      description: "The reservation that has it, held or promoted.",
      resolve: (unit) => unit.occupant,
    }),
  }),
});

builder.node(RackRef, {
  description: "A rack. OPERATOR.",
  id: { resolve: (rack) => rack.id },
  loadOne: (id, context) => context.loaders.rack.load(id),
  fields: (t) => ({
    name: t.exposeString("name", { description: "Unique at its site." }),
    site: t.field({
      type: SiteRef,
      description: "Where it stands.",
      resolve: async (rack, _args, context) => vouched(await context.loaders.site.load(rack.siteId)),
    }),
    heightUnits: t.exposeInt("heightUnits", { description: "How many units it has." }),
    numbering: t.field({
      type: UnitNumberingRef,
      description: "Which way its labels count.",
      resolve: (rack) => rack.numbering,
    }),
    startingUnit: t.exposeInt("startingUnit", { description: "The smallest number on its labels." }),
    powerBudgetWatts: t.exposeInt("powerBudgetWatts", {
      nullable: true,
      description: "What may be drawn in it, in watts; null: no budget.",
    }),
    capacity: t.field({
      type: RackCapacityRef,
      description: "What is left of it now.",
      resolve: (rack) => rack,
    }),
    elevation: t.field({
      type: [RackUnitRef],
      description: "One face from the top down, every unit of it.",
      args: {
        face: t.arg({ type: RackFaceRef, required: true, defaultValue: "front", description: "Which face." }),
      },
      resolve: async (rack, args, { loaders }) =>
        elevationOf(rack, await loaders.rackOccupants.load(rack.id), args.face),
    }),
  }),
});

builder.node(RackReservationRef, {
  description:
    "Rack units kept for somebody with a cart. Past its deadline it reads EXPIRED and its units free, whether or not anything has swept it.",
  id: { resolve: (row) => row.id },
  loadOne: (id, context) => context.loaders.rackReservation.load(id),
  fields: (t) => ({
    state: t.field({
      type: RackReservationStateRef,
      description: "State at this moment.",
      resolve: (row) => row.state,
    }),
    rack: t.field({
      type: RackRef,
      description: "The rack.",
      resolve: (row, _args, context) => rackOf(row, context),
    }),
    bottomUnit: t.exposeInt("bottomLabel", {
      description:
        "Label of the physically lowest unit (in a rack numbered from the top the largest number of them).",
    }),
    heightUnits: t.exposeInt("heightUnits", { description: "How many units." }),
    face: t.field({ type: RackFaceRef, description: "On which face.", resolve: (row) => row.face }),
    depth: t.field({
      type: RackDepthRef,
      description: "FULL takes both faces.",
      resolve: (row) => row.depth,
    }),
    powerWatts: t.exposeInt("powerWatts", { description: "What it takes of the power budget." }),
    purpose: t.exposeString("purpose", { description: "What for, as the caller said." }),
    heldAt: t.expose("heldAt", { type: "DateTime", description: "When the hold began." }),
    expiresAt: t.expose("expiresAt", {
      type: "DateTime",
      description: "The hold's deadline by the database's clock.",
    }),
    settledAt: t.expose("settledAt", {
      type: "DateTime",
      nullable: true,
      description:
        "When it was promoted or cancelled, or its deadline if that passed first. Null while HELD.",
    }),
    placement: t.field({
      type: PlacementRef,
      nullable: true,
      description: "What it became: the same row. Null unless PROMOTED.",
      resolve: (row) => (row.state === "promoted" ? row : null),
    }),
  }),
});

builder.node(PlacementRef, {
  description: "Where a machine is installed. The row that was the reservation becomes the placement.",
  id: { resolve: (row) => row.id },
  loadOne: (id, context) => context.loaders.placement.load(id),
  fields: (t) => ({
    rack: t.field({
      type: RackRef,
      description: "The rack.",
      resolve: (row, _args, context) => rackOf(row, context),
    }),
    machine: t.field({
      type: MachineRef,
      description: "The machine.",
      resolve: (row, _args, context) => machineOf(row.machineId, context),
    }),
    bottomUnit: t.exposeInt("bottomLabel", { description: "Label of the physically lowest unit." }),
    heightUnits: t.exposeInt("heightUnits", { description: "How many units it takes." }),
    face: t.field({ type: RackFaceRef, description: "On which face.", resolve: (row) => row.face }),
    depth: t.field({
      type: RackDepthRef,
      description: "FULL takes both faces.",
      resolve: (row) => row.depth,
    }),
    installedAt: t.field({
      type: "DateTime",
      description: "When the machine was installed.",
      resolve: (row) => vouched(row.settledAt),
    }),
    removedAt: t.expose("removedAt", {
      type: "DateTime",
      nullable: true,
      description: "When it was taken out; null while it stands there.",
    }),
  }),
});

builder.objectField(MachineRef, "placement", (t) =>
  t.field({
    type: PlacementRef,
    nullable: true,
    description: "Where it stands; null when it is in no rack, and for everybody but operators.",
    resolve: (machine, _args, context) => context.loaders.placementOfMachine.load(machine.id),
  }),
);

const RackSpaceRef = builder.objectRef<RackSpace>("RackSpace").implement({
  description: "A rack that would take a placement now.",
  fields: (t) => ({
    rack: t.field({ type: RackRef, description: "The rack.", resolve: (space) => space.rack }),
    bottomUnit: t.exposeInt("bottomLabel", { description: "Label of the unit where it would begin." }),
    gapUnits: t.exposeInt("gapUnits", { description: "Size of the gap that it would be put into." }),
    powerFreeWatts: t.exposeInt("freeWatts", {
      nullable: true,
      description: "What may still be drawn there, in watts; null: no budget.",
    }),
  }),
});

// ---------------------------------------------------------------- results

const RackCreatedRef = builder.objectRef<RackCreated>("RackCreated").implement({
  description: "The rack exists now.",
  fields: (t) => ({
    rack: t.field({ type: RackRef, description: "The new rack.", resolve: (r) => r.rack }),
  }),
});
const RackNameTakenRef = builder.objectRef<RackNameTaken>("RackNameTaken").implement({
  description: "The site has a rack of this name.",
  interfaces: [RefusalRef],
  fields: (t) => ({ name: t.exposeString("name", { description: "The name." }) }),
});
const RackUnitsReservedRef = builder.objectRef<RackUnitsReserved>("RackUnitsReserved").implement({
  description: "The units are kept until `rackReservation.expiresAt`.",
  fields: (t) => ({
    rackReservation: t.field({
      type: RackReservationRef,
      description: "The new reservation.",
      resolve: (r) => r.rackReservation,
    }),
  }),
});
const UnitsOccupiedRef = builder.objectRef<UnitsOccupied>("UnitsOccupied").implement({
  description: "Units that were asked for are somebody else's.",
  interfaces: [RefusalRef],
  fields: (t) => ({
    units: t.intList({
      description: "The units in the way, as labelled.",
      resolve: (r) => [...r.units],
    }),
  }),
});
const NoSpaceInRackRef = builder.objectRef<NoSpaceInRack>("NoSpaceInRack").implement({
  description: "The rack takes no such placement.",
  interfaces: [RefusalRef],
  fields: (t) => ({
    limitedBy: t.field({
      type: [CapacityLimitRef],
      description: "What keeps it out.",
      resolve: (r) => [...r.limitedBy],
    }),
    capacity: t.field({
      type: RackCapacityRef,
      description: "What is left of the rack.",
      resolve: async (r, _args, context) => vouched(await context.loaders.rack.load(r.rackId)),
    }),
  }),
});
const UnitsAlreadyReservedRef = builder.objectRef<UnitsAlreadyReserved>("UnitsAlreadyReserved").implement({
  description: "This key already has a reservation, and here it is (HELD or PROMOTED).",
  interfaces: [RefusalRef],
  fields: (t) => ({
    rackReservation: t.field({
      type: RackReservationRef,
      description: "The reservation.",
      resolve: (r) => r.rackReservation,
    }),
  }),
});
const RackNotFoundRef = builder.objectRef<RackNotFound>("RackNotFound").implement({
  description: "No such rack.",
  interfaces: [RefusalRef],
});
const RackReservationExpiredRef = builder
  .objectRef<RackReservationExpired>("RackReservationExpired")
  .implement({
    description: "The hold ran out.",
    interfaces: [RefusalRef],
    fields: (t) => ({
      rackReservation: t.field({
        type: RackReservationRef,
        description: "The reservation.",
        resolve: (r) => r.rackReservation,
      }),
    }),
  });
const RackReservationSettledRef = builder
  .objectRef<RackReservationSettled>("RackReservationSettled")
  .implement({
    description: "The reservation was promoted or cancelled before.",
    interfaces: [RefusalRef],
    fields: (t) => ({
      rackReservation: t.field({
        type: RackReservationRef,
        description: "The reservation.",
        resolve: (r) => r.rackReservation,
      }),
    }),
  });
const RackReservationNotFoundRef = builder
  .objectRef<RackReservationNotFound>("RackReservationNotFound")
  .implement({ description: "No such rack reservation.", interfaces: [RefusalRef] });
const RackReservationPromotedRef = builder
  .objectRef<RackReservationPromoted>("RackReservationPromoted")
  .implement({
    description: "The machine is installed where the units were held.",
    fields: (t) => ({
      rackReservation: t.field({
        type: RackReservationRef,
        description: "The reservation.",
        resolve: (r) => r.rackReservation,
      }),
      placement: t.field({
        type: PlacementRef,
        description: "The placement: the same row.",
        resolve: (r) => r.rackReservation,
      }),
    }),
  });
const MachineAlreadyPlacedRef = builder.objectRef<MachineAlreadyPlaced>("MachineAlreadyPlaced").implement({
  description: "The machine stands in a rack already.",
  interfaces: [RefusalRef],
  fields: (t) => ({
    placement: t.field({ type: PlacementRef, description: "Where.", resolve: (r) => r.placement }),
  }),
});
const MachineNotFoundRef = builder.objectRef<MachineNotFound>("MachineNotFound").implement({
  description: "No such machine.",
  interfaces: [RefusalRef],
});
const MachineDoesNotFitRef = builder.objectRef<MachineDoesNotFit>("MachineDoesNotFit").implement({
  description: "The machine does not fit the place.",
  interfaces: [RefusalRef],
  fields: (t) => ({
    misfits: t.field({ type: [MisfitRef], description: "Every reason.", resolve: (r) => [...r.misfits] }),
  }),
});
const RackReservationCancelledRef = builder
  .objectRef<RackReservationCancelled>("RackReservationCancelled")
  .implement({
    description: "The units are free again.",
    fields: (t) => ({
      rackReservation: t.field({
        type: RackReservationRef,
        description: "The reservation.",
        resolve: (r) => r.rackReservation,
      }),
    }),
  });
const PlacementRemovedRef = builder.objectRef<PlacementRemoved>("PlacementRemoved").implement({
  description: "The machine stands there no more.",
  fields: (t) => ({
    placement: t.field({
      type: PlacementRef,
      description: "The placement, with when it ended.",
      resolve: (r) => r.placement,
    }),
  }),
});
const PlacementAlreadyRemovedRef = builder
  .objectRef<PlacementAlreadyRemoved>("PlacementAlreadyRemoved")
  .implement({
    description: "The machine was taken out before.",
    interfaces: [RefusalRef],
    fields: (t) => ({
      placement: t.field({ type: PlacementRef, description: "The placement.", resolve: (r) => r.placement }),
    }),
  });
const PlacementNotFoundRef = builder.objectRef<PlacementNotFound>("PlacementNotFound").implement({
  description: "No such placement, or not one that still stands.",
  interfaces: [RefusalRef],
  fields: (t) => ({
    moves: t.intList({
      description: "Which moves name it, counted from 0; empty where one placement was named.",
      resolve: (r) => [...r.moves],
    }),
  }),
});
const PlacementsMovedRef = builder.objectRef<PlacementsMoved>("PlacementsMoved").implement({
  description: "Every placement stands where it was to go.",
  fields: (t) => ({
    placements: t.field({
      type: [PlacementRef],
      description: "The placements, in the order of the moves.",
      resolve: (r) => [...r.placements],
    }),
  }),
});
const PowerBudgetExceededRef = builder.objectRef<PowerBudgetExceeded>("PowerBudgetExceeded").implement({
  description: "A rack's power budget would not do.",
  interfaces: [RefusalRef],
});
const GeometryConflictRef = builder.objectRef<GeometryConflict>("GeometryConflict").implement({
  description: "What stands, or is reserved, would not fit any more. Nothing was changed.",
  interfaces: [RefusalRef],
  fields: (t) => ({
    placements: t.field({
      type: [PlacementRef],
      description: "Installed machines in the way.",
      resolve: (r) => r.rows.filter((row) => row.state === "promoted"),
    }),
    rackReservations: t.field({
      type: [RackReservationRef],
      description: "Holds in the way.",
      resolve: (r) => r.rows.filter((row) => row.state === "held"),
    }),
  }),
});
const RackUpdatedRef = builder.objectRef<RackUpdated>("RackUpdated").implement({
  description: "The rack is as asked.",
  fields: (t) => ({ rack: t.field({ type: RackRef, description: "The rack.", resolve: (r) => r.rack }) }),
});
const MachineGeometrySetRef = builder.objectRef<MachineGeometrySet>("MachineGeometrySet").implement({
  description: "The machine measures what was said, and its place has grown with it.",
  fields: (t) => ({
    machine: t.field({
      type: MachineRef,
      description: "The machine.",
      resolve: (r, _args, context) => machineOf(r.machineId, context),
    }),
  }),
});

const CreateRackResultRef = builder.unionType("CreateRackResult", {
  description: "What became of createRack.",
  types: [RackCreatedRef, RackNameTakenRef, SiteNotFoundRef],
  resolveType: (result) => result.kind,
});
const ReserveRackUnitsResultRef = builder.unionType("ReserveRackUnitsResult", {
  description: "What became of reserveRackUnits.",
  types: [
    RackUnitsReservedRef,
    UnitsOccupiedRef,
    NoSpaceInRackRef,
    UnitsAlreadyReservedRef,
    RackReservationExpiredRef,
    RackReservationSettledRef,
    IdempotencyKeyReusedRef,
    RackNotFoundRef,
    ModuleDisabledRef,
  ],
  resolveType: (result) => result.kind,
});
const PromoteRackReservationResultRef = builder.unionType("PromoteRackReservationResult", {
  description: "What became of promoteRackReservation.",
  types: [
    RackReservationPromotedRef,
    RackReservationExpiredRef,
    RackReservationSettledRef,
    RackReservationNotFoundRef,
    MachineAlreadyPlacedRef,
    MachineNotFoundRef,
    MachineDoesNotFitRef,
    ModuleDisabledRef,
  ],
  resolveType: (result) => result.kind,
});
const CancelRackReservationResultRef = builder.unionType("CancelRackReservationResult", {
  description: "What became of cancelRackReservation.",
  types: [
    RackReservationCancelledRef,
    RackReservationSettledRef,
    RackReservationExpiredRef,
    RackReservationNotFoundRef,
  ],
  resolveType: (result) => result.kind,
});
const RemovePlacementResultRef = builder.unionType("RemovePlacementResult", {
  description: "What became of removePlacement.",
  types: [PlacementRemovedRef, PlacementAlreadyRemovedRef, PlacementNotFoundRef],
  resolveType: (result) => result.kind,
});
const MovePlacementsResultRef = builder.unionType("MovePlacementsResult", {
  description: "What became of movePlacements.",
  types: [
    PlacementsMovedRef,
    UnitsOccupiedRef,
    PlacementNotFoundRef,
    MachineDoesNotFitRef,
    PowerBudgetExceededRef,
    ModuleDisabledRef,
  ],
  resolveType: (result) => result.kind,
});
const UpdateRackResultRef = builder.unionType("UpdateRackResult", {
  description: "What became of updateRack.",
  types: [RackUpdatedRef, RackNotFoundRef, RackNameTakenRef, GeometryConflictRef],
  resolveType: (result) => result.kind,
});
const SetMachineGeometryResultRef = builder.unionType("SetMachineGeometryResult", {
  description: "What became of setMachineGeometry.",
  types: [MachineGeometrySetRef, MachineNotFoundRef, GeometryConflictRef],
  resolveType: (result) => result.kind,
});

// ---------------------------------------------------------------- inputs

const CreateRackInput = builder.inputType("CreateRackInput", {
  description: "A new rack.",
  fields: (t) => ({
    siteCode: t.string({ required: true, description: "Code of an existing site." }),
    name: t.string({ required: true, description: "Unique at the site, 1 to 100 characters." }),
    heightUnits: t.int({ required: true, description: "1 to 100 units." }),
    numbering: t.field({ type: UnitNumberingRef, description: "Left out: BOTTOM_UP." }),
    startingUnit: t.int({ description: "The smallest number on its labels, 0 to 1000. Left out: 1." }),
    powerBudgetWatts: t.int({ description: "0 to 1,000,000 W. Left out: no budget." }),
  }),
});
const ReserveRackUnitsInput = builder.inputType("ReserveRackUnitsInput", {
  description:
    "Units to hold. `bottomUnit` is the label of the physically lowest unit (in a rack numbered from the top the largest number). Left out: the allocator picks the tightest gap that fits.",
  fields: (t) => ({
    rackId: t.id({ required: true, description: "The rack." }),
    heightUnits: t.int({
      required: true,
      description: "1 to 100 units. 0 and half units cannot be placed yet.",
    }),
    bottomUnit: t.int({ description: "Where it begins, as labelled. Left out: the tightest gap that fits." }),
    face: t.field({ type: RackFaceRef, description: "Left out: FRONT." }),
    depth: t.field({ type: RackDepthRef, description: "Left out: FULL, which takes both faces." }),
    powerWatts: t.int({ description: "What it will draw, 0 to 1,000,000 W. Left out: 0." }),
    purpose: t.string({ required: true, description: "What for, 1 to 500 characters." }),
    idempotencyKey: t.string({
      required: true,
      description:
        "Names this reservation for ever, 1 to 200 characters. Send the same key to repeat it: it never takes other units.",
    }),
  }),
});
const PromoteRackReservationInput = builder.inputType("PromoteRackReservationInput", {
  description: "A machine to install where units are held.",
  fields: (t) => ({
    rackReservationId: t.id({ required: true, description: "The reservation." }),
    machineId: t.id({ required: true, description: "The machine." }),
  }),
});
const CancelRackReservationInput = builder.inputType("CancelRackReservationInput", {
  description: "A hold to end.",
  fields: (t) => ({ rackReservationId: t.id({ required: true, description: "The reservation." }) }),
});
const RemovePlacementInput = builder.inputType("RemovePlacementInput", {
  description: "A machine to take out of its rack.",
  fields: (t) => ({ placementId: t.id({ required: true, description: "The placement." }) }),
});
const PlacementMoveInput = builder.inputType("PlacementMoveInput", {
  description: "Where a placement is to go.",
  fields: (t) => ({
    placementId: t.id({ required: true, description: "The placement." }),
    rackId: t.id({ required: true, description: "The rack it goes to, which may be its own." }),
    bottomUnit: t.int({ required: true, description: "Label of the physically lowest unit there." }),
    face: t.field({ type: RackFaceRef, description: "Left out: FRONT." }),
  }),
});
const MovePlacementsInput = builder.inputType("MovePlacementsInput", {
  description: "Placements to move, all or none, judged as a whole: what they leave is free for each other.",
  fields: (t) => ({
    moves: t.field({
      type: [PlacementMoveInput],
      required: true,
      description: "1 to 200 moves, each of another placement.",
    }),
  }),
});
const UpdateRackInput = builder.inputType("UpdateRackInput", {
  description: "What of a rack is to change. A field left out keeps its value.",
  fields: (t) => ({
    rackId: t.id({ required: true, description: "The rack." }),
    name: t.string({ description: "Unique at the site, 1 to 100 characters." }),
    heightUnits: t.int({ description: "1 to 100 units." }),
    numbering: t.field({ type: UnitNumberingRef, description: "Relabels it; nothing moves." }),
    startingUnit: t.int({ description: "0 to 1000. Relabels it; nothing moves." }),
    powerBudgetWatts: t.int({ description: "0 to 1,000,000 W; null: no budget." }),
  }),
});
const SetMachineGeometryInput = builder.inputType("SetMachineGeometryInput", {
  description: "What a machine measures. A field left out keeps its value.",
  fields: (t) => ({
    machineId: t.id({ required: true, description: "The machine." }),
    heightUnits: t.int({ description: "1 to 100 units." }),
    depth: t.field({ type: RackDepthRef, description: "HALF or FULL." }),
    powerWatts: t.int({ description: "0 to 1,000,000 W; null: not known." }),
  }),
});

// ---------------------------------------------------------------- roots

builder.queryFields((t) => ({
  racks: t.field({
    type: [RackRef],
    description: "The racks of a site, or of all, by site and name. OPERATOR.",
    authScopes: { role: OPERATORS },
    args: { siteCode: t.arg.string({ description: "Only this site's." }) },
    resolve: (_root, args, context) => racksList(context.db, inputParse(racksFilter, args, "").siteCode),
  }),
  rackSpace: t.field({
    type: [RackSpaceRef],
    description:
      "The racks of a site that would take a placement now, best first: the tightest gap, then the least power left over. OPERATOR.",
    authScopes: { role: OPERATORS },
    args: {
      siteCode: t.arg.string({ required: true, description: "The site." }),
      heightUnits: t.arg.int({ required: true, description: "1 to 100 units." }),
      depth: t.arg({ type: RackDepthRef, description: "Left out: FULL." }),
      powerWatts: t.arg.int({ description: "What it will draw, in watts. Left out: 0." }),
      face: t.arg({ type: RackFaceRef, description: "For HALF depth: on which face. Left out: FRONT." }),
    },
    resolve: (_root, args, context) => {
      const wish = inputParse(rackSpaceArguments, args, "");
      return rackSpaces(context.db, wish.siteCode, {
        heightUnits: wish.heightUnits,
        face: wish.face ?? "front",
        depth: wish.depth ?? "full",
        powerWatts: wish.powerWatts ?? 0,
      });
    },
  }),
}));

builder.mutationFields((t) => ({
  createRack: t.field({
    type: CreateRackResultRef,
    nullable: true,
    description: "Creates a rack. OPERATOR.",
    authScopes: { role: OPERATORS },
    args: { input: t.arg({ type: CreateRackInput, required: true, description: "The rack." }) },
    resolve: (_root, args, context) =>
      rackCreate(context.db, inputParse(createRackInput, args.input, "input")),
  }),
  updateRack: t.field({
    type: UpdateRackResultRef,
    nullable: true,
    description:
      "Changes a rack; refused, with the list, when something in it would not fit any more. OPERATOR.",
    authScopes: { role: OPERATORS },
    args: { input: t.arg({ type: UpdateRackInput, required: true, description: "What is to change." }) },
    resolve: (_root, args, context) => {
      const { rackId, name, heightUnits, numbering, startingUnit, powerBudgetWatts } = inputParse(
        updateRackInput,
        args.input,
        "input",
      );
      return rackUpdate(context.db, {
        rackId,
        name,
        heightUnits,
        numbering,
        startingUnit,
        powerBudgetWatts,
      });
    },
  }),
  reserveRackUnits: t.field({
    type: ReserveRackUnitsResultRef,
    nullable: true,
    description:
      "Holds rack units, those that were named or the tightest gap that fits. Safe to repeat with the same key. OPERATOR.",
    authScopes: { role: OPERATORS },
    args: { input: t.arg({ type: ReserveRackUnitsInput, required: true, description: "The units." }) },
    resolve: (_root, args, context) =>
      rackUnitsReserve(
        context.db,
        context.config.rackHoldSeconds,
        inputParse(reserveRackUnitsInput, args.input, "input"),
      ),
  }),
  promoteRackReservation: t.field({
    type: PromoteRackReservationResultRef,
    nullable: true,
    description: "Installs a machine where units are held; the deadline is judged at this moment. OPERATOR.",
    authScopes: { role: OPERATORS },
    args: {
      input: t.arg({ type: PromoteRackReservationInput, required: true, description: "Hold and machine." }),
    },
    resolve: (_root, args, context) => {
      const input = inputParse(promoteRackReservationInput, args.input, "input");
      return rackReservationPromote(context.db, input.rackReservationId, input.machineId);
    },
  }),
  cancelRackReservation: t.field({
    type: CancelRackReservationResultRef,
    nullable: true,
    description: "Gives held units back. Works with the switch closed. OPERATOR.",
    authScopes: { role: OPERATORS },
    args: { input: t.arg({ type: CancelRackReservationInput, required: true, description: "The hold." }) },
    resolve: (_root, args, context) =>
      rackReservationCancel(
        context.db,
        inputParse(cancelRackReservationInput, args.input, "input").rackReservationId,
      ),
  }),
  removePlacement: t.field({
    type: RemovePlacementResultRef,
    nullable: true,
    description: "Takes a machine out of its rack; the placement stays on record. OPERATOR.",
    authScopes: { role: OPERATORS },
    args: { input: t.arg({ type: RemovePlacementInput, required: true, description: "The placement." }) },
    resolve: (_root, args, context) =>
      placementRemove(context.db, inputParse(removePlacementInput, args.input, "input").placementId),
  }),
  movePlacements: t.field({
    type: MovePlacementsResultRef,
    nullable: true,
    description: "Moves installed machines, all or none, judged as a whole: a swap works. OPERATOR.",
    authScopes: { role: OPERATORS },
    args: { input: t.arg({ type: MovePlacementsInput, required: true, description: "The moves." }) },
    resolve: (_root, args, context) =>
      placementsMove(
        context.db,
        inputParse(movePlacementsInput, args.input, "input").moves.map((move) => ({
          ...move,
          face: move.face ?? "front",
        })),
      ),
  }),
  setMachineGeometry: t.field({
    type: SetMachineGeometryResultRef,
    nullable: true,
    description:
      "Says what a machine measures and draws. An installed machine's place grows with it; refused, with the list, when there is no room. OPERATOR.",
    authScopes: { role: OPERATORS },
    args: {
      input: t.arg({ type: SetMachineGeometryInput, required: true, description: "The measures." }),
    },
    resolve: (_root, args, context) => {
      const { machineId, heightUnits, depth, powerWatts } = inputParse(
        setMachineGeometryInput,
        args.input,
        "input",
      );
      return machineGeometrySet(context.db, { machineId, heightUnits, depth, powerWatts });
    },
  }),
}));
