import { ANYONE } from "../access/viewer.ts";
import { InvalidInput } from "../refusal.ts";
import { builder } from "./builder.ts";
import type { GraphContext } from "./context.ts";
import { globalIdDecode } from "./globalId.ts";

/**
 * How `node` finds each type. Only loaders stand here, and loaders return nothing that the viewer may
 * not see: an object of another organization answers like one that does not exist.
 */
const FINDERS = {
  Organization: (context, id) => context.loaders.organization.load(id),
  Site: (context, id) => context.loaders.site.load(id),
  Machine: (context, id) => context.loaders.machine.load(id),
  Reservation: (context, id) => context.loaders.reservation.load(id),
  ServiceBinding: (context, id) => context.loaders.binding.load(id),
  Rack: (context, id) => context.loaders.rack.load(id),
  RackReservation: (context, id) => context.loaders.rackReservation.load(id),
  Placement: (context, id) => context.loaders.placement.load(id),
  Project: (context, id) => context.loaders.project.load(id),
  Deployment: (context, id) => context.loaders.deployment.load(id),
  PublishAttempt: (context, id) => context.loaders.attempt.load(id),
} satisfies Record<string, (context: GraphContext, id: string) => Promise<object | null>>;

/** Types that `node` can return; a test compares them with the schema's. */
export const NODE_TYPES = Object.keys(FINDERS);

const MAX_NODES = 100;

async function nodeFind(context: GraphContext, globalId: string, field: string): Promise<object | null> {
  const decoded = globalIdDecode(globalId);
  if (decoded === null) throw new InvalidInput(field, "is not a global id");
  if (!Object.hasOwn(FINDERS, decoded.type)) return null;
  const row = await FINDERS[decoded.type as keyof typeof FINDERS](context, decoded.id);
  return row === null ? null : Object.assign(Object.create(null), row, { __typename: decoded.type });
}

builder.queryFields((t) => ({
  node: t.field({
    type: builder.nodeInterfaceRef(),
    nullable: true,
    description: "The object with this global id; null when there is none that you may see.",
    authScopes: { role: ANYONE },
    args: { id: t.arg.id({ required: true, description: "A global id." }) },
    resolve: (_root, args, context) => nodeFind(context, args.id, "id") as never,
  }),
  nodes: t.field({
    type: [builder.nodeInterfaceRef()],
    nullable: { list: false, items: true },
    description: `The objects with these global ids, in their order; null for each that you may not see. At most ${MAX_NODES}.`,
    authScopes: { role: ANYONE },
    args: { ids: t.arg.idList({ required: true, description: "Global ids." }) },
    resolve: (_root, args, context) => {
      if (args.ids.length > MAX_NODES)
        throw new InvalidInput("ids", `must have at most ${MAX_NODES} entries`);
      return Promise.all(args.ids.map((id, index) => nodeFind(context, id, `ids.${index}`))) as never;
    },
  }),
}));
