import { z } from "zod";
import { ModuleDisabledRef, OrganizationRef } from "../access/graphql.ts";
import { actingOrganization, RESERVING, sightOf } from "../access/viewer.ts";
import { builder } from "../graphql/builder.ts";
import { connectionOf, cursorsOf, PAGING } from "../graphql/connection.ts";
import type { GraphContext } from "../graphql/context.ts";
import { inputParse } from "../graphql/input.ts";
import { RefusalRef } from "../graphql/refusal.ts";
import { vouched } from "../graphql/vouched.ts";
import { MachineRef, MachineRequirementsInput, RejectionCountRef } from "../inventory/graphql.ts";
import type { MachineRow } from "../inventory/rows.ts";
import type { Refusal } from "../refusal.ts";
import { reservationCancel } from "./cancelReservation.ts";
import { reservationConvert } from "./convertReservation.ts";
import { reservationExtend } from "./extendReservation.ts";
import {
  cancelReservationInput,
  convertReservationInput,
  extendReservationInput,
  releaseBindingInput,
  reservationFilter,
  reserveMachineInput,
} from "./inputs.ts";
import { type ReservationKey, reservationsCount, reservationsPage } from "./queries/reservations.ts";
import { bindingRelease } from "./releaseBinding.ts";
import { machineReserve } from "./reserveMachine.ts";
import type {
  BindingNotFound,
  BindingReleased,
  CoolingDown,
  HoldLimitReached,
  IdempotencyKeyReused,
  MachineReserved,
  NothingAvailable,
  ReservationConverted,
  ReservationExtended,
  ReservationNotFound,
  ReservationReleased,
  SomeoneWasFaster,
} from "./results.ts";
import type { BindingRow, ReservationRow } from "./rows.ts";

const ReservationStateRef = builder.enumType("ReservationState", {
  description: "A reservation's life: HELD, then one of the others for good.",
  values: {
    HELD: { value: "held", description: "The machine is kept for this order until `expiresAt`." },
    CONVERTED: { value: "converted", description: "It became a binding." },
    EXPIRED: { value: "expired", description: "The deadline passed: a time-out." },
    CANCELLED: { value: "cancelled", description: "Somebody ended it: a decision." },
  } as const,
});

const AllocationChoiceRef = builder.objectRef<ReservationRow>("AllocationChoice").implement({
  description: "The chosen machine as it was, and why it was chosen. Frozen when the hold was made.",
  fields: (t) => ({
    rank: t.int({ description: "Place in the candidate order, 1 = best.", resolve: (r) => r.choice.rank }),
    skipped: t.int({
      description: "Candidates passed over because somebody else had them locked. Not failures.",
      resolve: (r) => r.choice.skipped,
    }),
    lostRaces: t.int({
      description: "Insert races lost before this one was won (at most 4).",
      resolve: (r) => r.choice.lostRaces,
    }),
    assetTag: t.string({ description: "Asset tag then.", resolve: (r) => r.choice.assetTag }),
    siteCode: t.string({ description: "Site then.", resolve: (r) => r.choice.siteCode }),
    manufacturer: t.string({ description: "Maker then.", resolve: (r) => r.choice.manufacturer }),
    model: t.string({ description: "Model then.", resolve: (r) => r.choice.model }),
    cpuCores: t.int({ description: "Cores then.", resolve: (r) => r.choice.cpuCores }),
    memoryGib: t.int({ description: "Memory in GiB then.", resolve: (r) => r.choice.memoryGib }),
    storageGib: t.int({ description: "Storage in GiB then.", resolve: (r) => r.choice.storageGib }),
    labels: t.stringList({ description: "Labels then.", resolve: (r) => [...r.choice.labels] }),
    explanation: t.string({
      description: "Why this one, in words, as decided then.",
      resolve: (r) => r.choice.explanation,
    }),
    decidedAt: t.field({ type: "DateTime", description: "When it was chosen.", resolve: (r) => r.heldAt }),
  }),
});

const ReservationRef = builder.objectRef<ReservationRow>("Reservation");
const ServiceBindingRef = builder.objectRef<BindingRow>("ServiceBinding");

builder.node(ReservationRef, {
  description:
    "A machine kept for an order. Past its deadline it reads EXPIRED and its machine FREE, whether or not anything has swept it.",
  id: { resolve: (reservation) => reservation.id },
  loadOne: (id, context) => context.loaders.reservation.load(id),
  fields: (t) => ({
    state: t.field({
      type: ReservationStateRef,
      description: "State at this moment.",
      resolve: (r) => r.state,
    }),
    organization: t.field({
      type: OrganizationRef,
      description: "Whose order it is.",
      resolve: async (r, _args, context) =>
        vouched(await context.loaders.organization.load(r.organizationId)),
    }),
    machine: t.field({
      type: MachineRef,
      description: "The machine as it is today; `choice` has it as it was.",
      resolve: async (r, _args, context) => vouched(await context.loaders.machine.load(r.machineId)),
    }),
    orderReference: t.exposeString("orderReference", { description: "The caller's name for the order." }),
    idempotencyKey: t.exposeString("idempotencyKey", { description: "The key it was made with." }),
    heldAt: t.expose("heldAt", { type: "DateTime", description: "When the hold began." }),
    expiresAt: t.expose("expiresAt", {
      type: "DateTime",
      description: "The hold's deadline by the database's clock.",
    }),
    settledAt: t.expose("settledAt", {
      type: "DateTime",
      nullable: true,
      description:
        "When it was converted or cancelled, or its deadline if that passed first. Null while HELD.",
    }),
    cancellationReason: t.exposeString("cancellationReason", {
      nullable: true,
      description: "The reason given, if any.",
    }),
    choice: t.field({
      type: AllocationChoiceRef,
      description: "Frozen when the hold was made; the machine may look different today.",
      resolve: (r) => r,
    }),
    binding: t.field({
      type: ServiceBindingRef,
      nullable: true,
      description: "What it became; null unless CONVERTED.",
      resolve: (r, _args, context) =>
        r.state === "converted" ? context.loaders.bindingOfReservation.load(r.id) : null,
    }),
  }),
});

builder.node(ServiceBindingRef, {
  description: "A machine that serves a customer, from conversion until release.",
  id: { resolve: (binding) => binding.id },
  loadOne: (id, context) => context.loaders.binding.load(id),
  fields: (t) => ({
    organization: t.field({
      type: OrganizationRef,
      description: "The customer.",
      resolve: async (b, _args, context) =>
        vouched(await context.loaders.organization.load(b.organizationId)),
    }),
    machine: t.field({
      type: MachineRef,
      description: "The machine.",
      resolve: (b, _args, context) => machineOf(b, context),
    }),
    reservation: t.field({
      type: ReservationRef,
      description: "The reservation it came from.",
      resolve: async (b, _args, context) => vouched(await context.loaders.reservation.load(b.reservationId)),
    }),
    serviceReference: t.exposeString("serviceReference", {
      description: "The caller's name for the service.",
    }),
    boundAt: t.expose("boundAt", { type: "DateTime", description: "When the service began." }),
    releasedAt: t.expose("releasedAt", {
      type: "DateTime",
      nullable: true,
      description: "When it ended; null while it runs.",
    }),
  }),
});

builder.objectFields(MachineRef, (t) => ({
  reservation: t.field({
    type: ReservationRef,
    nullable: true,
    description: "The hold that stands on it now, if you may see it.",
    resolve: (machine, _args, context) =>
      machine.reservationId === null ? null : context.loaders.reservation.load(machine.reservationId),
  }),
  binding: t.field({
    type: ServiceBindingRef,
    nullable: true,
    description: "The binding it serves now, if you may see it.",
    resolve: (machine, _args, context) =>
      machine.bindingId === null ? null : context.loaders.binding.load(machine.bindingId),
  }),
}));

/** A success that shows the reservation. */
function reservationSuccess<Result extends { readonly reservation: ReservationRow }>(
  name: string,
  description: string,
) {
  return builder.objectRef<Result>(name).implement({
    description,
    fields: (t) => ({
      reservation: t.field({
        type: ReservationRef,
        description: "The reservation.",
        resolve: (r) => r.reservation,
      }),
    }),
  });
}

/** A refusal that shows the reservation it speaks of. */
function reservationRefusal(name: string, description: string) {
  return builder.objectRef<Refusal & { readonly reservation: ReservationRow }>(name).implement({
    description,
    interfaces: [RefusalRef],
    fields: (t) => ({
      reservation: t.field({
        type: ReservationRef,
        description: "The reservation.",
        resolve: (r) => r.reservation,
      }),
    }),
  });
}

/** A refusal that shows the binding it speaks of. */
function bindingRefusal(name: string, description: string) {
  return builder.objectRef<Refusal & { readonly binding: BindingRow }>(name).implement({
    description,
    interfaces: [RefusalRef],
    fields: (t) => ({
      binding: t.field({ type: ServiceBindingRef, description: "The binding.", resolve: (r) => r.binding }),
    }),
  });
}

const MachineReservedRef = reservationSuccess<MachineReserved>(
  "MachineReserved",
  "The machine is held for this order until `reservation.expiresAt`: convert it before then.",
);
const NothingAvailableRef = builder.objectRef<NothingAvailable>("NothingAvailable").implement({
  description: "There is nothing to sell: buy more hardware, or change the order.",
  interfaces: [RefusalRef],
  fields: (t) => ({
    considered: t.exposeInt("considered", { description: "Machines in the inventory." }),
    rejections: t.field({
      type: [RejectionCountRef],
      description: "Machines a reason; a machine with several reasons counts under each.",
      resolve: (refusal) => [...refusal.rejections],
    }),
  }),
});
const SomeoneWasFasterRef = builder.objectRef<SomeoneWasFaster>("SomeoneWasFaster").implement({
  description: "There was something to sell and somebody else was a moment earlier: try again.",
  interfaces: [RefusalRef],
  fields: (t) => ({
    eligible: t.exposeInt("eligible", {
      description: "Machines that nothing spoke against when the list was read.",
    }),
    skipped: t.exposeInt("skipped", { description: "Candidates that other orders had at that moment." }),
    lostRaces: t.exposeInt("lostRaces", { description: "Candidates lost in the insert." }),
  }),
});
const AlreadyReservedRef = reservationRefusal(
  "AlreadyReserved",
  "This key already has a reservation, and here it is (HELD or CONVERTED).",
);
const ReservationExpiredRef = reservationRefusal("ReservationExpired", "The hold's deadline has passed.");
const ReservationCancelledRef = reservationRefusal("ReservationCancelled", "The reservation was cancelled.");
export const IdempotencyKeyReusedRef = builder
  .objectRef<IdempotencyKeyReused>("IdempotencyKeyReused")
  .implement({
    description: "The key was used before with other arguments.",
    interfaces: [RefusalRef],
    fields: (t) => ({ idempotencyKey: t.exposeString("idempotencyKey", { description: "The key." }) }),
  });
const HoldLimitReachedRef = builder.objectRef<HoldLimitReached>("HoldLimitReached").implement({
  description: "The organization holds as many machines as it may.",
  interfaces: [RefusalRef],
  fields: (t) => ({
    limit: t.exposeInt("limit", { description: "Machines it may hold at one time." }),
    held: t.field({
      type: [ReservationRef],
      description: "What it holds, the hold that ends first in front.",
      resolve: (refusal) => [...refusal.held],
    }),
  }),
});
export const CoolingDownRef = builder.objectRef<CoolingDown>("CoolingDown").implement({
  description: "The organization reserved a moment ago, and a cool-down is configured.",
  interfaces: [RefusalRef],
  fields: (t) => ({
    retryAt: t.expose("retryAt", {
      type: "DateTime",
      description: "From when a repeat is accepted, by the database's clock.",
    }),
  }),
});
const ReserveMachineResultRef = builder.unionType("ReserveMachineResult", {
  description: "What became of reserveMachine.",
  types: [
    MachineReservedRef,
    NothingAvailableRef,
    SomeoneWasFasterRef,
    AlreadyReservedRef,
    ReservationExpiredRef,
    ReservationCancelledRef,
    IdempotencyKeyReusedRef,
    HoldLimitReachedRef,
    CoolingDownRef,
    ModuleDisabledRef,
  ],
  resolveType: (result) => result.kind,
});

const ReservationConvertedRef = builder.objectRef<ReservationConverted>("ReservationConverted").implement({
  description: "The hold became a binding; the machine was never free in between.",
  fields: (t) => ({
    reservation: t.field({
      type: ReservationRef,
      description: "The reservation.",
      resolve: (r) => r.reservation,
    }),
    binding: t.field({ type: ServiceBindingRef, description: "The new binding.", resolve: (r) => r.binding }),
  }),
});
const AlreadyConvertedRef = bindingRefusal(
  "AlreadyConverted",
  "The reservation became a binding before, and here it is.",
);
const ReservationNotFoundRef = builder.objectRef<ReservationNotFound>("ReservationNotFound").implement({
  description: "No such reservation among those you may see.",
  interfaces: [RefusalRef],
});
const ConvertReservationResultRef = builder.unionType("ConvertReservationResult", {
  description: "What became of convertReservation.",
  types: [
    ReservationConvertedRef,
    ReservationExpiredRef,
    ReservationCancelledRef,
    AlreadyConvertedRef,
    ReservationNotFoundRef,
    ModuleDisabledRef,
  ],
  resolveType: (result) => result.kind,
});

const ReservationReleasedRef = reservationSuccess<ReservationReleased>(
  "ReservationReleased",
  "The hold is cancelled and its machine for sale.",
);
const CancelReservationResultRef = builder.unionType("CancelReservationResult", {
  description: "What became of cancelReservation.",
  types: [
    ReservationReleasedRef,
    ReservationExpiredRef,
    ReservationCancelledRef,
    AlreadyConvertedRef,
    ReservationNotFoundRef,
  ],
  resolveType: (result) => result.kind,
});

const ReservationExtendedRef = reservationSuccess<ReservationExtended>(
  "ReservationExtended",
  "The hold lasts until the new `reservation.expiresAt`.",
);
const ExtensionLimitReachedRef = reservationRefusal(
  "ExtensionLimitReached",
  "The hold lasts as long as a hold can.",
);
const ExtendReservationResultRef = builder.unionType("ExtendReservationResult", {
  description: "What became of extendReservation.",
  types: [
    ReservationExtendedRef,
    ExtensionLimitReachedRef,
    ReservationExpiredRef,
    ReservationCancelledRef,
    AlreadyConvertedRef,
    ReservationNotFoundRef,
    ModuleDisabledRef,
  ],
  resolveType: (result) => result.kind,
});

const BindingReleasedRef = builder.objectRef<BindingReleased>("BindingReleased").implement({
  description: "The service ended and the machine is in CLEANING.",
  fields: (t) => ({
    binding: t.field({ type: ServiceBindingRef, description: "The binding.", resolve: (r) => r.binding }),
    machine: t.field({
      type: MachineRef,
      description: "Its machine.",
      resolve: (r, _args, context) => machineOf(r.binding, context),
    }),
  }),
});
const AlreadyReleasedRef = bindingRefusal("AlreadyReleased", "The binding was released before.");
const BindingNotFoundRef = builder.objectRef<BindingNotFound>("BindingNotFound").implement({
  description: "No such binding among those you may see.",
  interfaces: [RefusalRef],
});
const ReleaseBindingResultRef = builder.unionType("ReleaseBindingResult", {
  description: "What became of releaseBinding.",
  types: [BindingReleasedRef, AlreadyReleasedRef, BindingNotFoundRef],
  resolveType: (result) => result.kind,
});

const ReserveMachineInput = builder.inputType("ReserveMachineInput", {
  description:
    "An order for one machine. `organizationId` is required for OPERATOR and STOREFRONT tokens and must be absent or the token's own for TENANT.",
  fields: (t) => ({
    organizationId: t.id({ description: "Whose order it is." }),
    orderReference: t.string({
      required: true,
      description: "Your name for the order, 1 to 200 characters.",
    }),
    idempotencyKey: t.string({
      required: true,
      description:
        "Names this order for ever, 1 to 200 characters, per organization. Send the same key to repeat the same order: it never takes a second machine.",
    }),
    requirements: t.field({
      type: MachineRequirementsInput,
      required: true,
      description: "What the machine must have.",
    }),
  }),
});
const ConvertReservationInput = builder.inputType("ConvertReservationInput", {
  description: "A hold to turn into a binding.",
  fields: (t) => ({
    reservationId: t.id({ required: true, description: "The reservation." }),
    serviceReference: t.string({
      required: true,
      description: "Your name for the service, 1 to 200 characters.",
    }),
  }),
});
const CancelReservationInput = builder.inputType("CancelReservationInput", {
  description: "A hold to end.",
  fields: (t) => ({
    reservationId: t.id({ required: true, description: "The reservation." }),
    reason: t.string({ description: "Why, for people; up to 1000 characters." }),
  }),
});
const ExtendReservationInput = builder.inputType("ExtendReservationInput", {
  description:
    "A hold to prolong, because payment has begun. Explicit and bounded: a hold never lives longer than twice its hold time, and nothing else extends it.",
  fields: (t) => ({ reservationId: t.id({ required: true, description: "The reservation." }) }),
});
const ReleaseBindingInput = builder.inputType("ReleaseBindingInput", {
  description:
    "A service that ended. The machine goes to CLEANING and is sold again only after an operator sets it READY.",
  fields: (t) => ({ bindingId: t.id({ required: true, description: "The binding." }) }),
});

const reservationKey: z.ZodType<ReservationKey> = z.tuple([z.string().regex(/^\d{1,16}$/), z.guid()]);

builder.queryField("reservations", (t) =>
  t.connection(
    {
      type: ReservationRef,
      description: `Reservations you may see, newest first; a tenant sees its own organization's. ${PAGING}`,
      authScopes: { role: RESERVING },
      args: {
        state: t.arg({ type: ReservationStateRef, description: "Only those in this state now." }),
        organizationId: t.arg.id({ description: "Only this organization's." }),
      },
      resolve: async (_root, args, context) => {
        const given = inputParse(
          reservationFilter,
          { state: args.state, organizationId: args.organizationId },
          "",
        );
        const sight = sightOf(context.viewer);
        const organizationId =
          sight.kind === "organization" || given.organizationId !== null
            ? actingOrganization(context.viewer, given.organizationId, "organizationId")
            : null;
        const filter = { state: given.state, organizationId };
        const cursors = cursorsOf("reservations", organizationId ?? "*", reservationKey);
        const page = cursors.page(args, context.rows);
        const rows = await reservationsPage(context.db, filter, page);
        return connectionOf(
          cursors,
          page,
          rows,
          (row): ReservationKey => [row.heldAtMicros, row.id],
          () => reservationsCount(context.db, filter),
        );
      },
    },
    { name: "ReservationConnection", description: "A page of reservations." },
    { name: "ReservationEdge", description: "One row of the page." },
  ),
);

builder.mutationFields((t) => ({
  reserveMachine: t.field({
    type: ReserveMachineResultRef,
    nullable: true,
    description:
      "Reserves one machine for an order, the closest fit first. Safe to repeat with the same key. OPERATOR, STOREFRONT, TENANT.",
    authScopes: { role: RESERVING },
    args: { input: t.arg({ type: ReserveMachineInput, required: true, description: "The order." }) },
    resolve: (_root, args, context) => {
      const input = inputParse(reserveMachineInput, args.input, "input");
      const organizationId = actingOrganization(context.viewer, input.organizationId, "input.organizationId");
      return machineReserve(context.db, context.config, { ...input, organizationId });
    },
  }),
  convertReservation: t.field({
    type: ConvertReservationResultRef,
    nullable: true,
    description:
      "Turns a hold into a binding, once the customer has paid. The deadline is judged at this moment. OPERATOR, STOREFRONT, TENANT.",
    authScopes: { role: RESERVING },
    args: { input: t.arg({ type: ConvertReservationInput, required: true, description: "The hold." }) },
    resolve: (_root, args, context) => {
      const input = inputParse(convertReservationInput, args.input, "input");
      return reservationConvert(context.db, context.viewer, input.reservationId, input.serviceReference);
    },
  }),
  cancelReservation: t.field({
    type: CancelReservationResultRef,
    nullable: true,
    description: "Ends a hold; its machine is for sale at once. OPERATOR, STOREFRONT, TENANT.",
    authScopes: { role: RESERVING },
    args: { input: t.arg({ type: CancelReservationInput, required: true, description: "The hold." }) },
    resolve: (_root, args, context) => {
      const input = inputParse(cancelReservationInput, args.input, "input");
      return reservationCancel(context.db, context.viewer, input.reservationId, input.reason);
    },
  }),
  extendReservation: t.field({
    type: ExtendReservationResultRef,
    nullable: true,
    description:
      "Adds the hold time once more, up to twice the hold time in all. OPERATOR, STOREFRONT, TENANT.",
    authScopes: { role: RESERVING },
    args: { input: t.arg({ type: ExtendReservationInput, required: true, description: "The hold." }) },
    resolve: (_root, args, context) => {
      const input = inputParse(extendReservationInput, args.input, "input");
      return reservationExtend(context.db, context.viewer, input.reservationId);
    },
  }),
  releaseBinding: t.field({
    type: ReleaseBindingResultRef,
    nullable: true,
    description: "Ends a service; its machine goes to CLEANING. OPERATOR, STOREFRONT, TENANT.",
    authScopes: { role: RESERVING },
    args: { input: t.arg({ type: ReleaseBindingInput, required: true, description: "The binding." }) },
    resolve: (_root, args, context) => {
      const input = inputParse(releaseBindingInput, args.input, "input");
      return bindingRelease(context.db, context.viewer, input.bindingId);
    },
  }),
}));

async function machineOf(binding: BindingRow, context: GraphContext): Promise<MachineRow> {
  return vouched(await context.loaders.machine.load(binding.machineId));
}
