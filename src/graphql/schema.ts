import type { GraphQLSchema } from "graphql";
import "../access/graphql.ts";
import "../inventory/graphql.ts";
import "../publishing/graphql.ts";
import "../racks/graphql.ts";
import "../reservations/graphql.ts";
import "../workers/graphql.ts";
import "./node.ts";
import { builder } from "./builder.ts";

/** The executable schema: each domain's types, registered by importing them. */
export const schema: GraphQLSchema = builder.toSchema();
