import type { Refusal } from "../refusal.ts";
import type { FeatureModule } from "./switches.ts";

/** An organization as its row stands. */
export interface OrganizationRow {
  readonly id: string;
  readonly slug: string;
  readonly name: string;
  /** null: follows the configured limit. */
  readonly holdLimit: number | null;
}

/** A token as its row stands; the secret is nowhere. */
export interface ApiTokenRow {
  readonly id: string;
  readonly name: string;
  readonly role: string;
  readonly organizationId: string | null;
  readonly createdAt: Date;
  readonly expiresAt: Date | null;
  readonly revokedAt: Date | null;
}

export interface OrganizationCreated {
  readonly kind: "OrganizationCreated";
  readonly organization: OrganizationRow;
}

export interface SlugTaken extends Refusal<"SlugTaken"> {
  readonly slug: string;
  readonly suggestions: readonly string[];
}

export interface SlugInvalid extends Refusal<"SlugInvalid"> {
  readonly slug: string;
}

export type CreateOrganizationResult = OrganizationCreated | SlugTaken | SlugInvalid;

export interface ModuleDisabled extends Refusal<"ModuleDisabled"> {
  readonly module: FeatureModule;
}

export function slugTaken(slug: string, suggestions: readonly string[]): SlugTaken {
  return {
    kind: "SlugTaken",
    message: `The slug "${slug}" is taken. Choose another, for example ${suggestions.join(", ")}.`,
    nextAction: "RENAME",
    retryAfterMs: null,
    slug,
    suggestions,
  };
}

export function slugInvalid(slug: string, problem: string): SlugInvalid {
  return {
    kind: "SlugInvalid",
    message: `"${slug}" cannot be a slug. ${problem}`,
    nextAction: "RENAME",
    retryAfterMs: null,
    slug,
  };
}

export function moduleDisabled(module: FeatureModule): ModuleDisabled {
  return {
    kind: "ModuleDisabled",
    message: `The ${module.toUpperCase()} module is closed for this organization; nothing was changed. An operator opens it with setRolloutSwitch, or for one organization with setFeatureOverride; repeating the request before that does not help.`,
    nextAction: "CONTACT_OPERATOR",
    retryAfterMs: null,
    module,
  };
}
