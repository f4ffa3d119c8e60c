import { builder } from "../graphql/builder.ts";
import { connectionOf, cursorsOf, PAGING } from "../graphql/connection.ts";
import { globalIdEncode } from "../graphql/globalId.ts";
import { inputParse, text } from "../graphql/input.ts";
import { RefusalRef } from "../graphql/refusal.ts";
import { InvalidInput } from "../refusal.ts";
import {
  createApiTokenInput,
  createOrganizationInput,
  revokeApiTokenInput,
  setFeatureOverrideInput,
  setHoldLimitInput,
  setRolloutSwitchInput,
} from "./inputs.ts";
import {
  organizationCreate,
  organizationHoldLimitSet,
  organizationOwn,
  organizationsCount,
  organizationsPage,
} from "./organizations.ts";
import type {
  ModuleDisabled,
  OrganizationCreated,
  OrganizationRow,
  SlugInvalid,
  SlugTaken,
} from "./results.ts";
import { type FeatureModule, featureOverrideSet, rolloutSwitchSet } from "./switches.ts";
import { apiTokenCreate, apiTokenRevoke } from "./tokens.ts";
import { ANYONE, OPERATORS, organizationUnknown, RESERVING, sightOf, type Viewer } from "./viewer.ts";

const TokenRoleRef = builder.enumType("TokenRole", {
  description: "What a token is for.",
  values: {
    OPERATOR: {
      value: "operator",
      description: "Everything: inventory, switches, tokens, every organization.",
    },
    STOREFRONT: { value: "storefront", description: "Reservations for any organization; no inventory." },
    TENANT: { value: "tenant", description: "The objects of its own organization." },
    METER: { value: "meter", description: "Usage reports only." },
  } as const,
});

const FeatureModuleRef = builder.enumType("FeatureModule", {
  description: "A part of the product with a rollout switch, closed until an operator opens it.",
  values: {
    DATACENTER: { value: "datacenter", description: "Reserving machines and rack units." },
    PUBLISHING: { value: "publishing", description: "Publishing apps." },
  } as const,
});

export const OrganizationRef = builder.objectRef<OrganizationRow>("Organization");
builder.node(OrganizationRef, {
  description: "A customer: it reserves machines and is billed for them.",
  id: { resolve: (organization) => organization.id },
  loadOne: (id, context) => context.loaders.organization.load(id),
  fields: (t) => ({
    slug: t.exposeString("slug", { description: "Unique short name: one DNS label." }),
    name: t.exposeString("name", { description: "Name for people." }),
    holdLimit: t.exposeInt("holdLimit", {
      nullable: true,
      description:
        "Machines it may hold at one time. Null: follows the configured limit (HOLDFAST_HOLD_LIMIT).",
    }),
    featureOverride: t.boolean({
      nullable: true,
      description: "The organization's own setting for a module. Null: follows the rollout switch.",
      args: {
        module: t.arg({ type: FeatureModuleRef, required: true, description: "The module asked about." }),
      },
      resolve: async (organization, args, context) =>
        (await context.loaders.overrides.load(organization.id)).get(args.module) ?? null,
    }),
    featureEnabled: t.boolean({
      description: "Whether the module is open for the organization now: its override, else the switch.",
      args: {
        module: t.arg({ type: FeatureModuleRef, required: true, description: "The module asked about." }),
      },
      resolve: async (organization, args, context) =>
        (await context.loaders.overrides.load(organization.id)).get(args.module) ??
        context.loaders.switches.load(args.module),
    }),
  }),
});

const ViewerRef = builder.objectRef<Viewer>("Viewer").implement({
  description: "Who the token says you are.",
  fields: (t) => ({
    role: t.field({
      type: TokenRoleRef,
      description: "What the token may do.",
      resolve: (viewer) => viewer.role,
    }),
    organization: t.field({
      type: OrganizationRef,
      nullable: true,
      description: "The organization the token belongs to; null for tokens that act for all of them.",
      resolve: (viewer, _args, context) =>
        viewer.organizationId === null ? null : organizationOwn(context.db, viewer.organizationId),
    }),
    tokenName: t.exposeString("tokenName", { description: "The name it was created under." }),
  }),
});

const OrganizationCreatedRef = builder.objectRef<OrganizationCreated>("OrganizationCreated").implement({
  description: "The organization exists now.",
  fields: (t) => ({
    organization: t.field({
      type: OrganizationRef,
      description: "The new organization.",
      resolve: (r) => r.organization,
    }),
  }),
});
export const SlugTakenRef = builder.objectRef<SlugTaken>("SlugTaken").implement({
  description: "The slug belongs to somebody else.",
  interfaces: [RefusalRef],
  fields: (t) => ({
    slug: t.exposeString("slug", { description: "The slug in its canonical form." }),
    suggestions: t.stringList({
      description: "Slugs that were free a moment ago.",
      resolve: (refusal) => [...refusal.suggestions],
    }),
  }),
});
export const SlugInvalidRef = builder.objectRef<SlugInvalid>("SlugInvalid").implement({
  description: "The slug is not a DNS label that can be had.",
  interfaces: [RefusalRef],
  fields: (t) => ({ slug: t.exposeString("slug", { description: "The slug as it was sent." }) }),
});
const CreateOrganizationResultRef = builder.unionType("CreateOrganizationResult", {
  description: "What became of createOrganization.",
  types: [OrganizationCreatedRef, SlugTakenRef, SlugInvalidRef],
  resolveType: (result) => result.kind,
});
export const ModuleDisabledRef = builder.objectRef<ModuleDisabled>("ModuleDisabled").implement({
  description: "The module's switch is closed for this organization.",
  interfaces: [RefusalRef],
  fields: (t) => ({
    module: t.field({
      type: FeatureModuleRef,
      description: "The closed module.",
      resolve: (refusal) => refusal.module,
    }),
  }),
});

const ApiTokenCreatedRef = builder
  .objectRef<{ kind: "ApiTokenCreated"; id: string; name: string; secret: string }>("ApiTokenCreated")
  .implement({
    description: "The token works from now on.",
    fields: (t) => ({
      id: t.id({
        description: "Global id of the token, for revokeApiToken.",
        resolve: (r) => globalIdEncode("ApiToken", r.id),
      }),
      name: t.exposeString("name", { description: "The token's name." }),
      secret: t.exposeString("secret", { description: "Shown this once and stored only as a hash." }),
    }),
  });
const ApiTokenRevokedRef = builder
  .objectRef<{ kind: "ApiTokenRevoked"; id: string; name: string; revokedAt: Date }>("ApiTokenRevoked")
  .implement({
    description: "The token opens nothing any more, in any process.",
    fields: (t) => ({
      id: t.id({ description: "Global id of the token.", resolve: (r) => globalIdEncode("ApiToken", r.id) }),
      name: t.exposeString("name", { description: "The token's name." }),
      revokedAt: t.expose("revokedAt", { type: "DateTime", description: "When it was revoked first." }),
    }),
  });
const RolloutSwitchSetRef = builder
  .objectRef<{ kind: "RolloutSwitchSet"; module: FeatureModule; enabled: boolean }>("RolloutSwitchSet")
  .implement({
    description: "The switch stands as asked.",
    fields: (t) => ({
      module: t.field({ type: FeatureModuleRef, description: "The module.", resolve: (r) => r.module }),
      enabled: t.exposeBoolean("enabled", {
        description: "Whether it is open for organizations without an override.",
      }),
    }),
  });
const FeatureOverrideSetRef = builder
  .objectRef<{ kind: "FeatureOverrideSet"; organizationId: string }>("FeatureOverrideSet")
  .implement({
    description: "The override stands as asked.",
    fields: (t) => ({
      organization: t.field({
        type: OrganizationRef,
        description: "The organization with its settings.",
        resolve: (r, _args, context) => organizationOf(context.loaders.organization.load(r.organizationId)),
      }),
    }),
  });
const HoldLimitSetRef = builder
  .objectRef<{ kind: "HoldLimitSet"; organization: OrganizationRow }>("HoldLimitSet")
  .implement({
    description: "The limit stands as asked.",
    fields: (t) => ({
      organization: t.field({
        type: OrganizationRef,
        description: "The organization.",
        resolve: (r) => r.organization,
      }),
    }),
  });

const CreateApiTokenResultRef = builder.unionType("CreateApiTokenResult", {
  description: "What became of createApiToken.",
  types: [ApiTokenCreatedRef],
  resolveType: (result) => result.kind,
});
const RevokeApiTokenResultRef = builder.unionType("RevokeApiTokenResult", {
  description: "What became of revokeApiToken.",
  types: [ApiTokenRevokedRef],
  resolveType: (result) => result.kind,
});
const SetRolloutSwitchResultRef = builder.unionType("SetRolloutSwitchResult", {
  description: "What became of setRolloutSwitch.",
  types: [RolloutSwitchSetRef],
  resolveType: (result) => result.kind,
});
const SetFeatureOverrideResultRef = builder.unionType("SetFeatureOverrideResult", {
  description: "What became of setFeatureOverride.",
  types: [FeatureOverrideSetRef],
  resolveType: (result) => result.kind,
});
const SetHoldLimitResultRef = builder.unionType("SetHoldLimitResult", {
  description: "What became of setHoldLimit.",
  types: [HoldLimitSetRef],
  resolveType: (result) => result.kind,
});

const CreateOrganizationInput = builder.inputType("CreateOrganizationInput", {
  description: "A new organization.",
  fields: (t) => ({
    slug: t.string({
      required: true,
      description: "One DNS label: a-z, 0-9, inner hyphens, at most 63 characters.",
    }),
    name: t.string({ required: true, description: "Name for people, 1 to 200 characters." }),
  }),
});
const CreateApiTokenInput = builder.inputType("CreateApiTokenInput", {
  description: "A new token.",
  fields: (t) => ({
    name: t.string({ required: true, description: "What it is for, 1 to 200 characters." }),
    role: t.field({ type: TokenRoleRef, required: true, description: "What it may do." }),
    organizationId: t.id({
      description: "Required for TENANT, optional for METER, left out for the others.",
    }),
    expiresAt: t.field({
      type: "DateTime",
      description: "When it ends; must be in the future. Left out: never.",
    }),
  }),
});
const RevokeApiTokenInput = builder.inputType("RevokeApiTokenInput", {
  description: "The token to revoke.",
  fields: (t) => ({
    tokenId: t.id({ required: true, description: "Global id that createApiToken returned." }),
  }),
});
const SetRolloutSwitchInput = builder.inputType("SetRolloutSwitchInput", {
  description: "A module's rollout switch.",
  fields: (t) => ({
    module: t.field({ type: FeatureModuleRef, required: true, description: "The module." }),
    enabled: t.boolean({ required: true, description: "true opens it, false closes it." }),
  }),
});
const SetFeatureOverrideInput = builder.inputType("SetFeatureOverrideInput", {
  description: "One organization's exception from a rollout switch.",
  fields: (t) => ({
    organizationId: t.id({ required: true, description: "The organization." }),
    module: t.field({ type: FeatureModuleRef, required: true, description: "The module." }),
    enabled: t.boolean({ description: "true opens, false closes, null follows the switch again." }),
  }),
});
const SetHoldLimitInput = builder.inputType("SetHoldLimitInput", {
  description: "How many machines one organization may hold at one time.",
  fields: (t) => ({
    organizationId: t.id({ required: true, description: "The organization." }),
    holdLimit: t.int({ description: "0 to 100,000; null follows the configured limit again." }),
  }),
});

builder.queryField("viewer", (t) =>
  t.field({
    type: ViewerRef,
    description: "Who you are to this API.",
    authScopes: { role: ANYONE },
    resolve: (_root, _args, context) => context.viewer as Viewer,
  }),
);

builder.queryField("organizations", (t) =>
  t.connection(
    {
      type: OrganizationRef,
      description: `The organizations you may act for, by slug; a tenant sees its own. ${PAGING}`,
      authScopes: { role: RESERVING },
      resolve: async (_root, args, context) => {
        const sight = sightOf(context.viewer);
        const owner = sight.kind === "organization" ? sight.organizationId : "*";
        const cursors = cursorsOf("organizations", owner, text(63));
        const page = cursors.page(args, context.rows);
        const rows = await organizationsPage(context.db, sight, page);
        return connectionOf(
          cursors,
          page,
          rows,
          (row) => row.slug,
          () => organizationsCount(context.db, sight),
        );
      },
    },
    { name: "OrganizationConnection", description: "A page of organizations." },
    { name: "OrganizationEdge", description: "One row of the page." },
  ),
);

builder.mutationFields((t) => ({
  createOrganization: t.field({
    type: CreateOrganizationResultRef,
    nullable: true,
    description: "Creates an organization. OPERATOR.",
    authScopes: { role: OPERATORS },
    args: {
      input: t.arg({ type: CreateOrganizationInput, required: true, description: "The organization." }),
    },
    resolve: (_root, args, context) =>
      organizationCreate(context.db, inputParse(createOrganizationInput, args.input, "input")),
  }),
  setHoldLimit: t.field({
    type: SetHoldLimitResultRef,
    nullable: true,
    description: "Sets how many machines an organization may hold at one time. OPERATOR.",
    authScopes: { role: OPERATORS },
    args: {
      input: t.arg({
        type: SetHoldLimitInput,
        required: true,
        description: "The organization and its limit.",
      }),
    },
    resolve: async (_root, args, context) => {
      const input = inputParse(setHoldLimitInput, args.input, "input");
      const organization = await organizationHoldLimitSet(context.db, input.organizationId, input.holdLimit);
      return { kind: "HoldLimitSet" as const, organization };
    },
  }),
  createApiToken: t.field({
    type: CreateApiTokenResultRef,
    nullable: true,
    description: "Creates a token and shows its secret this once. OPERATOR.",
    authScopes: { role: OPERATORS },
    args: { input: t.arg({ type: CreateApiTokenInput, required: true, description: "The token." }) },
    resolve: async (_root, args, context) => ({
      kind: "ApiTokenCreated" as const,
      ...(await apiTokenCreate(context.db, inputParse(createApiTokenInput, args.input, "input"))),
    }),
  }),
  revokeApiToken: t.field({
    type: RevokeApiTokenResultRef,
    nullable: true,
    description: "Revokes a token at once, in every process. Repeating it changes nothing. OPERATOR.",
    authScopes: { role: OPERATORS },
    args: { input: t.arg({ type: RevokeApiTokenInput, required: true, description: "The token." }) },
    resolve: async (_root, args, context) => {
      const { tokenId } = inputParse(revokeApiTokenInput, args.input, "input");
      const revoked = await apiTokenRevoke(context.db, tokenId);
      if (revoked === null) throw new InvalidInput("input.tokenId", "names no token");
      return { kind: "ApiTokenRevoked" as const, ...revoked };
    },
  }),
  setRolloutSwitch: t.field({
    type: SetRolloutSwitchResultRef,
    nullable: true,
    description: "Opens or closes a module for every organization without an override. OPERATOR.",
    authScopes: { role: OPERATORS },
    args: { input: t.arg({ type: SetRolloutSwitchInput, required: true, description: "The switch." }) },
    resolve: async (_root, args, context) => {
      const input = inputParse(setRolloutSwitchInput, args.input, "input");
      await rolloutSwitchSet(context.db, input.module, input.enabled);
      return { kind: "RolloutSwitchSet" as const, ...input };
    },
  }),
  setFeatureOverride: t.field({
    type: SetFeatureOverrideResultRef,
    nullable: true,
    description: "Opens or closes a module for one organization, whatever the switch says. OPERATOR.",
    authScopes: { role: OPERATORS },
    args: { input: t.arg({ type: SetFeatureOverrideInput, required: true, description: "The override." }) },
    resolve: async (_root, args, context) => {
      const input = inputParse(setFeatureOverrideInput, args.input, "input");
      await organizationOf(context.loaders.organization.load(input.organizationId));
      await featureOverrideSet(context.db, input.organizationId, input.module, input.enabled);
      return { kind: "FeatureOverrideSet" as const, organizationId: input.organizationId };
    },
  }),
}));

async function organizationOf(loaded: Promise<OrganizationRow | null>): Promise<OrganizationRow> {
  const organization = await loaded;
  if (organization === null) throw organizationUnknown("input.organizationId");
  return organization;
}
