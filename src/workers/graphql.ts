import { OPERATORS } from "../access/viewer.ts";
import { builder } from "../graphql/builder.ts";
import { type SweeperFigures, sweeperFigures } from "./sweeper.ts";

const SweeperFiguresRef = builder.objectRef<SweeperFigures>("SweeperFigures").implement({
  description:
    "The worker that expires overdue holds, over all processes. It tidies up: answers are right without it.",
  fields: (t) => ({
    lastRanAt: t.expose("lastRanAt", {
      type: "DateTime",
      nullable: true,
      description: "When the last sweep ended.",
    }),
    lastExpired: t.exposeInt("lastExpired", { nullable: true, description: "Holds that it expired." }),
    lastFailed: t.exposeInt("lastFailed", {
      nullable: true,
      description: "Holds that it could not expire; the log says why.",
    }),
    lastWorker: t.exposeString("lastWorker", {
      nullable: true,
      description: "Host and process that did it.",
    }),
    overdue: t.exposeInt("overdue", {
      description: "Holds past their deadline that nobody has touched yet.",
    }),
  }),
});

builder.queryField("sweeper", (t) =>
  t.field({
    type: SweeperFiguresRef,
    description: "When overdue holds were swept last, and how many wait. OPERATOR.",
    authScopes: { role: OPERATORS },
    resolve: (_root, _args, context) => sweeperFigures(context.db),
  }),
);
