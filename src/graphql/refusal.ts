import type { NextAction, Refusal } from "../refusal.ts";
import { builder } from "./builder.ts";

const ACTIONS: Record<NextAction, string> = {
  RETRY: "Somebody was faster: send the same request again.",
  BUY_MORE: "There is nothing to sell: add hardware, or change the order.",
  USE_EXISTING: "What was asked for is already there: use it.",
  START_OVER: "This one is over: begin again with a new key.",
  FOLLOW: "It is already running: follow it, there is nothing to fix.",
  RENAME: "The name is taken or not allowed: choose another.",
  WAIT: "Send the same request again later, after `retryAfterMs`.",
  FIX_REQUEST: "The request refers to something that does not fit: correct it.",
  CONTACT_OPERATOR: "Only an operator can change this.",
};

const NextActionRef = builder.enumType("NextAction", {
  description: "What a client should offer after a refusal: one button per value.",
  values: Object.fromEntries(
    Object.entries(ACTIONS).map(([name, description]) => [name, { description }]),
  ) as Record<NextAction, { description: string }>,
});

/** Implemented by every union member that is not a success. */
export const RefusalRef = builder.interfaceRef<Refusal>("Refusal").implement({
  description:
    "Implemented by every union member that is not a success, so that a client can handle one it has never seen.",
  fields: (t) => ({
    message: t.exposeString("message", {
      description: "An instruction, for a person or an agent, in plain words.",
    }),
    nextAction: t.field({
      type: NextActionRef,
      description: "The one thing to offer next.",
      resolve: (r) => r.nextAction,
    }),
    retryAfterMs: t.int({
      nullable: true,
      // An Int holds 24.8 days; a hold of the longest kind lasts 60.
      resolve: (r) => (r.retryAfterMs === null ? null : Math.min(r.retryAfterMs, 2_147_483_647)),
      description: "Milliseconds after which a repeat makes sense; null where a repeat does not help.",
    }),
  }),
});
