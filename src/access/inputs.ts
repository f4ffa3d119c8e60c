import { z } from "zod";
import { globalIdOf } from "../graphql/globalId.ts";
import { optional, text, wholeNumber } from "../graphql/input.ts";
import { FEATURE_MODULES } from "./switches.ts";
import { TOKEN_ROLES } from "./viewer.ts";

export const createOrganizationInput = z.object({
  slug: z.string().max(300, "must have at most 300 characters"),
  name: text(200),
});
export const setHoldLimitInput = z.object({
  organizationId: globalIdOf("Organization"),
  holdLimit: optional(wholeNumber(0, 100_000)),
});
export const createApiTokenInput = z.object({
  name: text(200),
  role: z.enum(TOKEN_ROLES),
  organizationId: optional(globalIdOf("Organization")),
  // Before year 1 PostgreSQL has another spelling; whatever is past is refused by its clock later.
  expiresAt: optional(z.date().min(new Date("0001-01-01"), "is in the past")),
});
export const revokeApiTokenInput = z.object({ tokenId: globalIdOf("ApiToken") });
export const setRolloutSwitchInput = z.object({ module: z.enum(FEATURE_MODULES), enabled: z.boolean() });
export const setFeatureOverrideInput = z.object({
  organizationId: globalIdOf("Organization"),
  module: z.enum(FEATURE_MODULES),
  enabled: optional(z.boolean()),
});
