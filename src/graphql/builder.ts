import SchemaBuilder from "@pothos/core";
import RelayPlugin from "@pothos/plugin-relay";
import ScopeAuthPlugin from "@pothos/plugin-scope-auth";
import { DateTimeISOResolver } from "graphql-scalars";
import type { TokenRole } from "../access/viewer.ts";
import { AccessDenied } from "../refusal.ts";
import type { GraphContext } from "./context.ts";

/** What the schema is built from. No domain type is defined here; each stands in its domain. */
export interface SchemaTypes {
  Context: GraphContext;
  AuthScopes: {
    /** The viewer has one of these roles. */
    role: readonly TokenRole[];
  };
  Scalars: {
    ID: { Input: string; Output: string };
    DateTime: { Input: Date; Output: Date };
  };
  DefaultFieldNullability: false;
  DefaultEdgesNullability: { list: false; items: false };
  DefaultNodeNullability: false;
  Connection: { totalCount: () => Promise<number> };
}

export const builder = new SchemaBuilder<SchemaTypes>({
  plugins: [ScopeAuthPlugin, RelayPlugin],
  defaultFieldNullability: false,
  scopeAuth: {
    // Not only when an event is resolved: a stream that nobody may see is never opened.
    authorizeOnSubscribe: true,
    authScopes: (context) => ({
      role: (roles) => context.viewer !== null && roles.includes(context.viewer.role),
    }),
    unauthorizedError: (_parent, context, info) =>
      context.viewer === null
        ? new AccessDenied(
            "UNAUTHENTICATED",
            "Send a valid token in the header `Authorization: Bearer <token>`. The token is missing, unknown, expired or revoked.",
          )
        : new AccessDenied(
            "FORBIDDEN",
            `A ${context.viewer.role.toUpperCase()} token may not use ${info.parentType.name}.${info.fieldName}.`,
          ),
  },
  relay: {
    clientMutationId: "omit",
    cursorType: "String",
    edgesFieldOptions: {
      nullable: { list: false, items: false },
      description: "The rows, each with its cursor.",
    },
    nodeFieldOptions: { nullable: false, description: "The row itself." },
    cursorFieldOptions: { description: "The row's place in the list, for `after` and `before`." },
    pageInfoFieldOptions: { description: "Whether there is more, and where this page begins and ends." },
    pageInfoTypeOptions: { description: "Where a page stands in its list." },
    hasNextPageFieldOptions: { description: "Whether rows follow this page." },
    hasPreviousPageFieldOptions: { description: "Whether rows come before this page." },
    startCursorFieldOptions: { description: "Cursor of the first row; null on an empty page." },
    endCursorFieldOptions: { description: "Cursor of the last row; null on an empty page." },
    firstArgOptions: { description: "So many rows from the front, at most 1000." },
    lastArgOptions: { description: "So many rows from the back, at most 1000." },
    afterArgOptions: { description: "Only rows after this cursor." },
    beforeArgOptions: { description: "Only rows before this cursor." },
    nodeTypeOptions: { description: "Whatever has a global id." },
    nodeQueryOptions: false,
    nodesQueryOptions: false,
    idFieldOptions: { description: "Global id: opaque, stable, and unique over all types." },
  },
});

builder.addScalarType("DateTime", DateTimeISOResolver);
builder.globalConnectionField("totalCount", (t) =>
  t.int({
    description: "Rows in the whole list, whatever the page.",
    resolve: (connection) => connection.totalCount(),
  }),
);

builder.queryType({ description: "Reads. Nothing here writes or locks." });
builder.mutationType({
  description:
    "Changes. Each returns a union: the success, or a typed refusal that says what kind it is and what to do next. A GraphQL error is never a business outcome.",
});
builder.subscriptionType({
  description:
    "Streams, over server-sent events: POST the document with `Accept: text/event-stream`. Each ends by itself when there is nothing more to tell, or with an error.",
});
