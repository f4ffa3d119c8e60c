import { z } from "zod";
import { OPERATORS, RESERVING } from "../access/viewer.ts";
import { builder } from "../graphql/builder.ts";
import { connectionOf, cursorsOf, PAGING } from "../graphql/connection.ts";
import type { GraphContext } from "../graphql/context.ts";
import { inputParse, text } from "../graphql/input.ts";
import { RefusalRef } from "../graphql/refusal.ts";
import { vouched } from "../graphql/vouched.ts";
import { machineCreate } from "./createMachine.ts";
import { siteCreate } from "./createSite.ts";
import {
  candidateFilter,
  createMachineInput,
  createSiteInput,
  fleetArguments,
  machineFilter,
  machineRequirements,
  setMachineStatusInput,
} from "./inputs.ts";
import {
  type CandidateKey,
  type JudgedCounts,
  type JudgedMachine,
  machinesJudgeCounts,
  machinesJudgePage,
  machinesJudgeTotal,
} from "./judgeMachines.ts";
import {
  type FleetFigures,
  fleetFigures,
  machinesCount,
  machinesPage,
  sitesList,
} from "./queries/machines.ts";
import { type Rejection, type RejectionCount, rejectionsOf } from "./rejections.ts";
import type { MachineRequirements } from "./requirements.ts";
import type {
  AssetTagTaken,
  CodeTaken,
  MachineCreated,
  MachineInUse,
  MachineStatusSet,
  SiteCreated,
  SiteNotFound,
} from "./results.ts";
import type { MachineRow, SiteRow } from "./rows.ts";
import { machineStatusSet } from "./setMachineStatus.ts";

const MachineStatusRef = builder.enumType("MachineStatus", {
  description: "Life of the hardware. Only READY is for sale.",
  values: {
    PLANNED: { value: "planned", description: "Ordered or expected." },
    STAGED: { value: "staged", description: "Here, not yet in service." },
    READY: { value: "ready", description: "In service: for sale unless held or bound." },
    MAINTENANCE: { value: "maintenance", description: "Out of sale for work on it." },
    CLEANING: {
      value: "cleaning",
      description: "Released by a customer; an operator sets it READY once it is wiped.",
    },
    FAILED: { value: "failed", description: "Broken." },
    RETIRED: { value: "retired", description: "Out of service for good." },
  } as const,
});

const MachineAvailabilityRef = builder.enumType("MachineAvailability", {
  description: "Derived, never stored: what the database says about the machine at this moment.",
  values: {
    FREE: { value: "free", description: "For sale now." },
    HELD: { value: "held", description: "Held for an order until the hold's deadline." },
    BOUND: { value: "bound", description: "Serves a customer." },
    NOT_READY: { value: "not_ready", description: "Its status keeps it out of sale." },
  } as const,
});

export const RackDepthRef = builder.enumType("RackDepth", {
  description: "How much of a rack's depth something takes.",
  values: {
    HALF: { value: "half", description: "One face only; the other stays free." },
    FULL: { value: "full", description: "The front and the rear." },
  } as const,
});

export const SiteRef = builder.objectRef<SiteRow>("Site");
builder.node(SiteRef, {
  description: "A place where machines stand.",
  id: { resolve: (site) => site.id },
  loadOne: (id, context) => context.loaders.site.load(id),
  fields: (t) => ({
    code: t.exposeString("code", { description: "Unique short code, as orders name it." }),
    name: t.exposeString("name", { description: "Name for people." }),
  }),
});

export const MachineRef = builder.objectRef<MachineRow>("Machine");
builder.node(MachineRef, {
  description:
    "A dedicated machine: it exists once. Operators see all of them; others those that stand in a reservation they may see.",
  id: { resolve: (machine) => machine.id },
  loadOne: (id, context) => context.loaders.machine.load(id),
  fields: (t) => ({
    assetTag: t.exposeString("assetTag", { description: "Unique tag on the hardware." }),
    site: t.field({
      type: SiteRef,
      description: "Where it stands.",
      resolve: async (machine, _args, context) => vouched(await context.loaders.site.load(machine.siteId)),
    }),
    location: t.exposeString("location", {
      nullable: true,
      description: "Place within the site, for people.",
    }),
    manufacturer: t.exposeString("manufacturer", { description: "Maker, compared exactly by orders." }),
    model: t.exposeString("model", { description: "Model, compared exactly by orders." }),
    cpuCores: t.exposeInt("cpuCores", { description: "Physical cores." }),
    memoryGib: t.exposeInt("memoryGib", { description: "Memory in GiB." }),
    storageGib: t.exposeInt("storageGib", { description: "Storage of all disks together, in GiB." }),
    labels: t.stringList({
      description: "What else orders may ask for.",
      resolve: (machine) => [...machine.labels],
    }),
    monthlyPriceCents: t.exposeInt("monthlyPriceCents", {
      nullable: true,
      description: "Monthly price in euro cents; null where none is set.",
    }),
    status: t.field({
      type: MachineStatusRef,
      description: "Life of the hardware.",
      resolve: (m) => m.status,
    }),
    availability: t.field({
      type: MachineAvailabilityRef,
      description: "What the database says about it at this moment.",
      resolve: (machine) => machine.availability,
    }),
    heightUnits: t.exposeInt("heightUnits", { description: "Rack units that it takes, from its feet up." }),
    depth: t.field({
      type: RackDepthRef,
      description: "FULL: it takes the front and the rear of its units.",
      resolve: (machine) => machine.depth,
    }),
    powerWatts: t.exposeInt("powerWatts", {
      nullable: true,
      description: "What it draws at most, in watts; null where it is not known.",
    }),
  }),
});

const RejectionKindRef = builder.enumType("RejectionKind", {
  description: "Why a machine is ruled out: it does not fit, or it is taken.",
  values: {
    FILTERED: { description: "The machine never fits this order." },
    EXHAUSTED: { description: "It fits, and is taken." },
  } as const,
});

const RejectionReasonRef = builder.enumType("RejectionReason", {
  description: "One reason why a machine is ruled out.",
  values: {
    WRONG_SITE: { value: "wrong_site", description: "It stands at another site." },
    WRONG_MANUFACTURER: { value: "wrong_manufacturer", description: "Another maker." },
    WRONG_MODEL: { value: "wrong_model", description: "Another model." },
    TOO_FEW_CORES: { value: "too_few_cores", description: "Fewer cores than asked for." },
    TOO_LITTLE_MEMORY: { value: "too_little_memory", description: "Less memory than asked for." },
    TOO_LITTLE_STORAGE: { value: "too_little_storage", description: "Less storage than asked for." },
    MISSING_LABEL: { value: "missing_label", description: "A label that was asked for is missing." },
    NOT_INSTALLED: {
      value: "not_installed",
      description: "It stands in no rack, and the order asks for one that does.",
    },
    NOT_READY: { value: "not_ready", description: "Its status keeps it out of sale." },
    HELD: { value: "held", description: "It is held for another order." },
    BOUND: { value: "bound", description: "It serves a customer." },
  } as const,
});

const RejectionRef = builder.objectRef<Rejection>("Rejection").implement({
  description: "One reason why one machine is ruled out, with the values that were compared.",
  fields: (t) => ({
    reason: t.field({ type: RejectionReasonRef, description: "The reason.", resolve: (r) => r.reason }),
    kind: t.field({
      type: RejectionKindRef,
      description: "Does not fit, or is taken.",
      resolve: (r) => r.kind,
    }),
    wanted: t.exposeString("wanted", { nullable: true, description: "What the order asks for." }),
    actual: t.exposeString("actual", {
      nullable: true,
      description: "What the machine has, or until when it is held.",
    }),
  }),
});

export const RejectionCountRef = builder.objectRef<RejectionCount>("RejectionCount").implement({
  description: "How many machines a reason rules out. A machine with several reasons counts under each.",
  fields: (t) => ({
    reason: t.field({ type: RejectionReasonRef, description: "The reason.", resolve: (r) => r.reason }),
    kind: t.field({
      type: RejectionKindRef,
      description: "Does not fit, or is taken.",
      resolve: (r) => r.kind,
    }),
    machines: t.exposeInt("machines", { description: "Machines with this reason." }),
  }),
});

const CandidateVerdictRef = builder.enumType("CandidateVerdict", {
  description: "Whether an order could have the machine now.",
  values: {
    ELIGIBLE: { value: "eligible", description: "Nothing speaks against it." },
    REJECTED: { value: "rejected", description: "At least one reason speaks against it." },
  } as const,
});

/** A judged machine together with the order it was judged for. */
interface Candidate {
  readonly machine: JudgedMachine;
  readonly requirements: MachineRequirements;
}

const CandidateRef = builder.objectRef<Candidate>("Candidate").implement({
  description:
    "One machine as the allocator sees it for given requirements: every reason that excludes it, not just the first.",
  fields: (t) => ({
    machine: t.field({
      type: MachineRef,
      description: "The machine.",
      resolve: (candidate) => candidate.machine,
    }),
    verdict: t.field({
      type: CandidateVerdictRef,
      description: "Eligible or rejected.",
      resolve: (candidate) => (candidate.machine.rank === null ? "rejected" : "eligible"),
    }),
    rank: t.int({
      nullable: true,
      description:
        "Place in the order of best fit, 1 = least over-provisioned (cores, then memory, then storage). Machines of equal fit are entered by each order at a place of its own. Null for a rejected machine.",
      resolve: (candidate) => candidate.machine.rank,
    }),
    rejections: t.field({
      type: [RejectionRef],
      description: "Every reason against it; empty for an eligible machine.",
      resolve: ({ machine, requirements }) => rejectionsOf(machine, requirements, machine.reasons),
    }),
  }),
});

/** What an order would meet; the counts are read once, and only if asked for. */
interface AllocationPreview {
  readonly requirements: MachineRequirements;
  readonly counts: () => Promise<JudgedCounts>;
}

const COUNTS_AS_ROWS = 300;

const candidateKey: z.ZodType<CandidateKey> = z.tuple([
  z.boolean(),
  z.boolean(),
  z.int32(),
  z.int32(),
  z.int32(),
  z.guid(),
]);

const AllocationPreviewRef = builder.objectRef<AllocationPreview>("AllocationPreview").implement({
  description:
    "What a reservation with these requirements would meet right now. Writes nothing, locks nothing.",
  fields: (t) => ({
    considered: t.int({
      description: "Machines in the inventory.",
      resolve: async (preview) => (await preview.counts()).considered,
    }),
    eligible: t.int({
      description: "Machines that nothing speaks against.",
      resolve: async (preview) => (await preview.counts()).eligible,
    }),
    rejections: t.field({
      type: [RejectionCountRef],
      description: "Machines a reason, over the whole inventory.",
      resolve: async (preview) => [...(await preview.counts()).rejections],
    }),
    candidates: t.connection(
      {
        type: CandidateRef,
        description: `The machines themselves: the eligible in the order of best fit, then the rejected. OPERATOR. ${PAGING}`,
        authScopes: { role: OPERATORS },
        args: {
          verdict: t.arg({ type: CandidateVerdictRef, description: "Only these." }),
          reason: t.arg({
            type: RejectionReasonRef,
            description: "Only machines that this reason rules out.",
          }),
        },
        resolve: async ({ requirements }, args, context) => {
          const wanted = inputParse(candidateFilter, { verdict: args.verdict, reason: args.reason }, "");
          const filter = {
            eligible: wanted.verdict === null ? null : wanted.verdict === "eligible",
            reason: wanted.reason,
          };
          const cursors = cursorsOf("candidates", "*", candidateKey);
          const page = cursors.page(args, context.rows);
          const rows = await machinesJudgePage(context.db, requirements, filter, page);
          return connectionOf(
            cursors,
            page,
            rows.map((machine): Candidate => ({ machine, requirements })),
            ({ machine: m }): CandidateKey => [
              m.rank === null,
              m.overdue,
              m.cpuCores,
              m.memoryGib,
              m.storageGib,
              m.id,
            ],
            () => machinesJudgeTotal(context.db, requirements, filter),
          );
        },
      },
      { name: "CandidateConnection", description: "A page of candidates." },
      { name: "CandidateEdge", description: "One row of the page." },
    ),
  }),
});

const FleetFiguresRef = builder.objectRef<FleetFigures>("FleetFigures").implement({
  description: "A site's machines, counted by availability as the database sees them now.",
  fields: (t) => ({
    siteCode: t.exposeString("siteCode", { nullable: true, description: "The site." }),
    machines: t.exposeInt("machines", { description: "All of them." }),
    free: t.exposeInt("free", { description: "For sale now." }),
    held: t.exposeInt("held", { description: "Held for an order." }),
    bound: t.exposeInt("bound", { description: "Serving a customer." }),
    notReady: t.exposeInt("notReady", { description: "Out of sale by status." }),
  }),
});

const SiteCreatedRef = builder.objectRef<SiteCreated>("SiteCreated").implement({
  description: "The site exists now.",
  fields: (t) => ({ site: t.field({ type: SiteRef, description: "The new site.", resolve: (r) => r.site }) }),
});
const CodeTakenRef = builder.objectRef<CodeTaken>("CodeTaken").implement({
  description: "A site with this code exists already.",
  interfaces: [RefusalRef],
  fields: (t) => ({ code: t.exposeString("code", { description: "The code." }) }),
});
const CreateSiteResultRef = builder.unionType("CreateSiteResult", {
  description: "What became of createSite.",
  types: [SiteCreatedRef, CodeTakenRef],
  resolveType: (result) => result.kind,
});

const MachineCreatedRef = builder.objectRef<MachineCreated>("MachineCreated").implement({
  description: "The machine is in the inventory now.",
  fields: (t) => ({
    machine: t.field({
      type: MachineRef,
      description: "The new machine.",
      resolve: (result, _args, context) => machineOf(result, context),
    }),
  }),
});
const AssetTagTakenRef = builder.objectRef<AssetTagTaken>("AssetTagTaken").implement({
  description: "A machine with this asset tag exists already.",
  interfaces: [RefusalRef],
  fields: (t) => ({ assetTag: t.exposeString("assetTag", { description: "The asset tag." }) }),
});
export const SiteNotFoundRef = builder.objectRef<SiteNotFound>("SiteNotFound").implement({
  description: "No site has this code.",
  interfaces: [RefusalRef],
  fields: (t) => ({ siteCode: t.exposeString("siteCode", { description: "The code that was sent." }) }),
});
const CreateMachineResultRef = builder.unionType("CreateMachineResult", {
  description: "What became of createMachine.",
  types: [MachineCreatedRef, AssetTagTakenRef, SiteNotFoundRef],
  resolveType: (result) => result.kind,
});

const MachineStatusSetRef = builder.objectRef<MachineStatusSet>("MachineStatusSet").implement({
  description: "The machine has this status now.",
  fields: (t) => ({
    machine: t.field({
      type: MachineRef,
      description: "The machine.",
      resolve: (result, _args, context) => machineOf(result, context),
    }),
  }),
});
const MachineInUseRef = builder.objectRef<MachineInUse>("MachineInUse").implement({
  description: "The machine is held or serves a customer, and keeps its status.",
  interfaces: [RefusalRef],
  fields: (t) => ({
    machine: t.field({
      type: MachineRef,
      description: "The machine with the hold or binding that is in the way.",
      resolve: (result, _args, context) => machineOf(result, context),
    }),
  }),
});
const SetMachineStatusResultRef = builder.unionType("SetMachineStatusResult", {
  description: "What became of setMachineStatus.",
  types: [MachineStatusSetRef, MachineInUseRef],
  resolveType: (result) => result.kind,
});

const CreateSiteInput = builder.inputType("CreateSiteInput", {
  description: "A new site.",
  fields: (t) => ({
    code: t.string({ required: true, description: "Unique short code, 1 to 50 characters." }),
    name: t.string({ required: true, description: "Name for people, 1 to 200 characters." }),
  }),
});
const CreateMachineInput = builder.inputType("CreateMachineInput", {
  description: "A new machine.",
  fields: (t) => ({
    assetTag: t.string({ required: true, description: "Unique tag, 1 to 100 characters." }),
    siteCode: t.string({ required: true, description: "Code of an existing site." }),
    manufacturer: t.string({ required: true, description: "Maker, 1 to 200 characters." }),
    model: t.string({ required: true, description: "Model, 1 to 200 characters." }),
    cpuCores: t.int({ required: true, description: "Physical cores, 1 to 100,000." }),
    memoryGib: t.int({ required: true, description: "Memory in GiB, 1 to 100,000,000." }),
    storageGib: t.int({ required: true, description: "Storage in GiB, 0 to 1,000,000,000." }),
    labels: t.stringList({
      description: "What else orders may ask for; at most 64 labels of 100 characters.",
    }),
    status: t.field({ type: MachineStatusRef, description: "Left out: PLANNED, which is not for sale." }),
    heightUnits: t.int({ description: "Rack units that it takes, 1 to 100. Left out: 1." }),
    depth: t.field({ type: RackDepthRef, description: "Left out: FULL." }),
    powerWatts: t.int({ description: "What it draws at most, 0 to 1,000,000 W. Left out: not known." }),
  }),
});
const SetMachineStatusInput = builder.inputType("SetMachineStatusInput", {
  description: "A machine's new status.",
  fields: (t) => ({
    machineId: t.id({ required: true, description: "The machine." }),
    status: t.field({ type: MachineStatusRef, required: true, description: "The status it shall have." }),
  }),
});
const MachineFilterInput = builder.inputType("MachineFilter", {
  description: "Which machines to list. A field left out or null does not restrict.",
  fields: (t) => ({
    siteCode: t.string({ description: "At this site." }),
    manufacturer: t.string({ description: "Of this maker, exactly." }),
    status: t.field({ type: MachineStatusRef, description: "With this status." }),
    availability: t.field({ type: MachineAvailabilityRef, description: "Available like this now." }),
    search: t.string({
      description: "Part of the asset tag, maker, model, location or a label; case does not count.",
    }),
  }),
});
export const MachineRequirementsInput = builder.inputType("MachineRequirements", {
  description:
    "Requirements of an order. A field left out or null does not restrict; an empty string is refused as BAD_USER_INPUT.",
  fields: (t) => ({
    siteCode: t.string({ description: "At this site, exactly." }),
    manufacturer: t.string({ description: "Of this maker, exactly." }),
    model: t.string({ description: "This model, exactly." }),
    minCpuCores: t.int({ description: "At least so many cores." }),
    minMemoryGib: t.int({ description: "At least so much memory, in GiB." }),
    minStorageGib: t.int({ description: "At least so much storage, in GiB." }),
    labels: t.stringList({ description: "All of these labels." }),
    installed: t.boolean({
      description: "true: only machines that stand in a rack. false does not restrict.",
    }),
  }),
});

builder.queryFields((t) => ({
  sites: t.field({
    type: [SiteRef],
    description: "Every site, by code.",
    authScopes: { role: RESERVING },
    resolve: (_root, _args, context) => sitesList(context.db),
  }),
  machines: t.connection(
    {
      type: MachineRef,
      description: `The inventory, by asset tag. OPERATOR. ${PAGING}`,
      authScopes: { role: OPERATORS },
      args: {
        filter: t.arg({ type: MachineFilterInput, description: "Which machines; all when left out." }),
      },
      resolve: async (_root, args, context) => {
        const filter = inputParse(machineFilter, args.filter ?? {}, "filter");
        const cursors = cursorsOf("machines", "*", text(100));
        const page = cursors.page(args, context.rows);
        const rows = await machinesPage(context.db, filter, page);
        return connectionOf(
          cursors,
          page,
          rows,
          (row) => row.assetTag,
          () => machinesCount(context.db, filter),
        );
      },
    },
    { name: "MachineConnection", description: "A page of machines." },
    { name: "MachineEdge", description: "One row of the page." },
  ),
  allocationPreview: t.field({
    type: AllocationPreviewRef,
    description:
      "What a reservation with these requirements would meet right now. Writes nothing, locks nothing.",
    authScopes: { role: RESERVING },
    args: {
      requirements: t.arg({
        type: MachineRequirementsInput,
        required: true,
        description: "What the order asks for.",
      }),
    },
    resolve: (_root, args, context) => {
      const requirements = inputParse(machineRequirements, args.requirements, "requirements");
      let counts: Promise<JudgedCounts> | undefined;
      return {
        requirements,
        counts: () => {
          // Counting reads the whole inventory, whatever it returns: 64 aliases of it pass, hundreds do not.
          if (counts === undefined) context.rows.take(COUNTS_AS_ROWS, "requirements");
          counts ??= machinesJudgeCounts(context.db, requirements);
          return counts;
        },
      };
    },
  }),
  fleet: t.field({
    type: [FleetFiguresRef],
    description: "Machines by site and availability. OPERATOR.",
    authScopes: { role: OPERATORS },
    args: { siteCode: t.arg.string({ description: "Only this site; every site when left out." }) },
    resolve: (_root, args, context) => {
      const { siteCode } = inputParse(fleetArguments, args, "");
      return fleetFigures(context.db, siteCode);
    },
  }),
}));

builder.mutationFields((t) => ({
  createSite: t.field({
    type: CreateSiteResultRef,
    nullable: true,
    description: "Creates a site. OPERATOR.",
    authScopes: { role: OPERATORS },
    args: { input: t.arg({ type: CreateSiteInput, required: true, description: "The site." }) },
    resolve: (_root, args, context) =>
      siteCreate(context.db, inputParse(createSiteInput, args.input, "input")),
  }),
  createMachine: t.field({
    type: CreateMachineResultRef,
    nullable: true,
    description: "Adds one machine to the inventory. OPERATOR. For many, use `holdfast import`.",
    authScopes: { role: OPERATORS },
    args: { input: t.arg({ type: CreateMachineInput, required: true, description: "The machine." }) },
    resolve: (_root, args, context) =>
      machineCreate(context.db, inputParse(createMachineInput, args.input, "input")),
  }),
  setMachineStatus: t.field({
    type: SetMachineStatusResultRef,
    nullable: true,
    description: "Sets a machine's status. A held or bound machine refuses. OPERATOR.",
    authScopes: { role: OPERATORS },
    args: {
      input: t.arg({
        type: SetMachineStatusInput,
        required: true,
        description: "The machine and its status.",
      }),
    },
    resolve: (_root, args, context) => {
      const input = inputParse(setMachineStatusInput, args.input, "input");
      return machineStatusSet(context.db, input.machineId, input.status);
    },
  }),
}));

async function machineOf(result: { machineId: string }, context: GraphContext): Promise<MachineRow> {
  return vouched(await context.loaders.machine.load(result.machineId));
}
