import type { Db } from "../database/client.ts";
import { violates } from "../database/violation.ts";
import { organizationUnknown } from "./viewer.ts";

/** Modules with a rollout switch, as the database calls them. */
export const FEATURE_MODULES = ["datacenter", "publishing"] as const;
export type FeatureModule = (typeof FEATURE_MODULES)[number];

/** Opens or closes a module for everybody who has no override. Twice: the same result. */
export async function rolloutSwitchSet(db: Db, module: FeatureModule, enabled: boolean): Promise<void> {
  await db.$executeRaw`
    UPDATE rollout_switch SET enabled = ${enabled}, changed_at = clock_timestamp()
    WHERE module = ${module} AND enabled <> ${enabled}`;
}

/**
 * Opens or closes a module for one organization, whatever the switch says; null follows the switch
 * again. Twice: the same result; two different values at once: the later one stays.
 * @throws InvalidInput for an unknown organization.
 */
export async function featureOverrideSet(
  db: Db,
  organizationId: string,
  module: FeatureModule,
  enabled: boolean | null,
): Promise<void> {
  if (enabled === null) {
    await db.featureOverride.deleteMany({ where: { organizationId, module } });
    return;
  }
  try {
    await db.$executeRaw`
      INSERT INTO feature_override (organization_id, module, enabled)
      VALUES (${organizationId}::uuid, ${module}, ${enabled})
      ON CONFLICT (organization_id, module)
      DO UPDATE SET enabled = excluded.enabled, changed_at = clock_timestamp()`;
  } catch (error) {
    if (violates(error, "feature_override_organization_id_fkey"))
      throw organizationUnknown("input.organizationId");
    throw error;
  }
}
