import DataLoader from "dataloader";
import { byKey } from "../database/byKey.ts";
import type { Db } from "../database/client.ts";
import { organizationsByIds } from "./organizations.ts";
import type { OrganizationRow } from "./results.ts";
import type { FeatureModule } from "./switches.ts";
import type { Sight } from "./viewer.ts";

/** Batched reads of one request, within the viewer's sight. */
export interface AccessLoaders {
  readonly organization: DataLoader<string, OrganizationRow | null>;
  /** An organization's overrides; modules without one follow the switch. */
  readonly overrides: DataLoader<string, ReadonlyMap<FeatureModule, boolean>>;
  readonly switches: DataLoader<FeatureModule, boolean>;
}

export function accessLoaders(db: Db, sight: Sight): AccessLoaders {
  return {
    organization: new DataLoader(async (ids) =>
      byKey(ids, await organizationsByIds(db, sight, ids), (row) => row.id),
    ),
    overrides: new DataLoader(async (ids) => {
      const rows = await db.featureOverride.findMany({ where: { organizationId: { in: [...ids] } } });
      return ids.map(
        (id) =>
          new Map(
            rows
              .filter((row) => row.organizationId === id)
              .map((row) => [row.module as FeatureModule, row.enabled]),
          ),
      );
    }),
    switches: new DataLoader(async (modules) => {
      const rows = await db.rolloutSwitch.findMany();
      return modules.map((module) => rows.find((row) => row.module === module)?.enabled ?? false);
    }),
  };
}
