import { AccessDenied, InvalidInput } from "../refusal.ts";

/** What a token is for. Stored in lower case. */
export const TOKEN_ROLES = ["operator", "storefront", "tenant", "meter"] as const;
export type TokenRole = (typeof TOKEN_ROLES)[number];

/** Who asks. */
export interface Viewer {
  readonly role: TokenRole;
  /** The organization a TENANT (or a METER, optionally) belongs to. */
  readonly organizationId: string | null;
  readonly tokenName: string;
}

/** Everybody with a valid token. */
export const ANYONE: readonly TokenRole[] = TOKEN_ROLES;
export const OPERATORS: readonly TokenRole[] = ["operator"];
/** Roles that may reserve machines, and therefore see sites, organizations and rejection counts. */
export const RESERVING: readonly TokenRole[] = ["operator", "storefront", "tenant"];
/** Roles that may publish apps, and see projects. */
export const PUBLISHING: readonly TokenRole[] = ["operator", "tenant"];

/**
 * Which organizations' objects a viewer may see. This is the one rule: loaders, lists and the
 * mutations' SQL functions all take it, so that an object of another organization answers exactly
 * like one that does not exist, whichever way it is asked for.
 */
export type Sight =
  /** Every organization. */
  | { readonly kind: "all" }
  /** One organization's objects. */
  | { readonly kind: "organization"; readonly organizationId: string }
  /** No organization's objects. */
  | { readonly kind: "none" };

/** What this viewer may see of organizations, reservations and bindings (design §6). */
export function sightOf(viewer: Viewer | null): Sight {
  if (viewer === null || viewer.role === "meter") return { kind: "none" };
  if (viewer.role === "tenant") {
    return viewer.organizationId === null
      ? { kind: "none" }
      : { kind: "organization", organizationId: viewer.organizationId };
  }
  return { kind: "all" };
}

/** What this viewer may see of projects and deployments: a storefront sells machines and publishes nothing. */
export function publishingSightOf(viewer: Viewer | null): Sight {
  return viewer?.role === "storefront" ? { kind: "none" } : sightOf(viewer);
}

/**
 * The same rule as SQL takes it: null sees everything.
 * @throws AccessDenied for a viewer who sees nothing; the field's role check comes first.
 */
export function sightParameter(viewer: Viewer | null): string | null {
  const sight = sightOf(viewer);
  if (sight.kind === "none")
    throw new AccessDenied("FORBIDDEN", "This token may not act for any organization.");
  return sight.kind === "all" ? null : sight.organizationId;
}

/** What is said of an organization that does not exist, and of one that is none of the caller's business. */
export function organizationUnknown(field: string): InvalidInput {
  return new InvalidInput(field, "names no organization that this token may act for");
}

/**
 * The organization a request acts for: the token's own for a TENANT, the given one for others.
 * @throws InvalidInput when it is missing, or not the tenant's own.
 */
export function actingOrganization(viewer: Viewer | null, given: string | null, field: string): string {
  const sight = sightOf(viewer);
  if (sight.kind === "all") {
    if (given === null) throw new InvalidInput(field, "is required for OPERATOR and STOREFRONT tokens");
    return given;
  }
  if (sight.kind === "none" || (given !== null && given !== sight.organizationId))
    throw organizationUnknown(field);
  return sight.organizationId;
}

/** Whether conversion and extension follow the module's switch: an operator may honour a paid order. */
export function followsSwitch(viewer: Viewer | null): boolean {
  return viewer?.role !== "operator";
}
