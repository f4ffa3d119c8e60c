import DataLoader from "dataloader";
import type { Sight } from "../access/viewer.ts";
import { byKey } from "../database/byKey.ts";
import type { Db } from "../database/client.ts";
import { attemptsByIds, deploymentsBy, projectsByIds } from "./queries/deployments.ts";
import type { AttemptRow, DeploymentRow, ProjectRow } from "./rows.ts";

/** Batched reads of one request, within the viewer's sight of publishing. */
export interface PublishingLoaders {
  readonly project: DataLoader<string, ProjectRow | null>;
  readonly deployment: DataLoader<string, DeploymentRow | null>;
  readonly deploymentOfProject: DataLoader<string, DeploymentRow | null>;
  readonly attempt: DataLoader<string, AttemptRow | null>;
}

export function publishingLoaders(db: Db, sight: Sight): PublishingLoaders {
  return {
    project: new DataLoader(async (ids) => byKey(ids, await projectsByIds(db, sight, ids), (row) => row.id)),
    deployment: new DataLoader(async (ids) =>
      byKey(ids, await deploymentsBy(db, sight, "id", ids), (row) => row.id),
    ),
    deploymentOfProject: new DataLoader(async (ids) =>
      byKey(ids, await deploymentsBy(db, sight, "projectId", ids), (row) => row.projectId),
    ),
    attempt: new DataLoader(async (ids) => byKey(ids, await attemptsByIds(db, sight, ids), (row) => row.id)),
  };
}
