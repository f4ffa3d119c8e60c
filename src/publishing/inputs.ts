import { z } from "zod";
import { globalIdOf } from "../graphql/globalId.ts";
import { optional, text, wholeNumber } from "../graphql/input.ts";

/** Attempts and events are counted; nobody gets near this. */
const MAX_NUMBER = 1_000_000_000;

export const createProjectInput = z.object({
  organizationId: optional(globalIdOf("Organization")),
  name: text(200),
});
export const publishAppInput = z.object({
  projectId: globalIdOf("Project"),
  slug: z.string().max(300, "must have at most 300 characters"),
  source: text(2000),
});
export const cancelPublishInput = z.object({
  deploymentId: globalIdOf("Deployment"),
  attempt: wholeNumber(1, MAX_NUMBER),
});
export const projectFilter = z.object({ organizationId: optional(globalIdOf("Organization")) });
export const deploymentEventsInput = z.object({
  deploymentId: globalIdOf("Deployment"),
  afterSequence: optional(wholeNumber(0, MAX_NUMBER)),
});
