// Publishes a project's app. The claim is one call of a SQL function (migration publish_claim), and
// therefore one transaction; the build service is asked after it, by whoever's claim took.
// Twice at once: one claims, the others are told what runs, and reach the build service never.
import { hostname } from "node:os";
import { moduleDisabled, slugInvalid, slugTaken } from "../access/results.ts";
import { slugVariants } from "../access/slug.ts";
import { publishingSightOf, sightParameter, type Viewer } from "../access/viewer.ts";
import type { PublishingConfig } from "../config.ts";
import type { Db } from "../database/client.ts";
import { TryAgain } from "../refusal.ts";
import type { Publisher } from "./publisher.ts";
import { publishClaim } from "./queries/claims.ts";
import { deploymentsBy, slugsInUse } from "./queries/deployments.ts";
import { type PublishAppResult, projectNotFound, publishCoolingDown, publishInProgress } from "./results.ts";
import type { DeploymentRow } from "./rows.ts";
import { appSlugRead } from "./slugs.ts";

/** What publishing needs. */
export interface PublishAppServices {
  readonly db: Db;
  readonly config: PublishingConfig;
  readonly publisher: Publisher;
}

const SUGGESTIONS = 3;

/** @throws TryAgain when the project's deployment stays locked, or changes hands faster than it can be read. */
export async function appPublish(
  services: PublishAppServices,
  viewer: Viewer | null,
  input: { projectId: string; slug: string; source: string },
): Promise<PublishAppResult> {
  const { db, config, publisher } = services;
  const reading = appSlugRead(input.slug);
  if ("problem" in reading) return slugInvalid(input.slug, reading.problem);
  const { slug } = reading;
  const answer = await publishClaim(db, {
    projectId: input.projectId,
    organizationId: sightParameter(viewer),
    slug,
    source: input.source,
    owner: `${hostname()}:${process.pid}`,
    claimTimeoutSeconds: config.claimTimeoutSeconds,
    buildLimitSeconds: config.buildLimitSeconds,
    coolDownSeconds: config.coolDownSeconds,
  });
  switch (answer.outcome) {
    case "not_found":
      return projectNotFound();
    case "module_disabled":
      return moduleDisabled("publishing");
    case "slug_taken":
      return slugTaken(slug, await suggestions(db, slug));
    case "cooling_down":
      return publishCoolingDown(given(answer.retryAt), given(answer.retryAfterMs));
    case "unsettled":
      throw new TryAgain(new Error("publish_claim met five different neighbours"));
    case "claimed": {
      const attempt = given(answer.attempt);
      const deploymentId = given(answer.deploymentId);
      publisher.begin({
        deploymentId,
        attempt,
        attemptId: given(answer.attemptId),
        slug,
        source: input.source,
      });
      // An old attempt's build may have to be stopped.
      if (answer.takenOver !== null) publisher.stopBuilds();
      return { kind: "PublishStarted", deployment: await read(db, viewer, deploymentId), attempt };
    }
    case "in_progress": {
      const deployment = await read(db, viewer, given(answer.deploymentId));
      // It may have ended since: what was true when the claim was refused is what is told.
      return publishInProgress(
        { ...deployment, state: "building", attempt: given(answer.attempt) },
        config.heartbeatSeconds,
      );
    }
  }
}

async function read(db: Db, viewer: Viewer | null, deploymentId: string): Promise<DeploymentRow> {
  const row = (await deploymentsBy(db, publishingSightOf(viewer), "id", [deploymentId]))[0];
  if (row === undefined) throw new Error("a deployment that was decided on is gone");
  return row;
}

/** Slugs like this one that were free a moment ago. */
async function suggestions(db: Db, slug: string): Promise<string[]> {
  const variants = slugVariants(slug, 12).filter((variant) => !("problem" in appSlugRead(variant)));
  const taken = new Set(await slugsInUse(db, variants));
  return variants.filter((variant) => !taken.has(variant)).slice(0, SUGGESTIONS);
}

function given<Value>(value: Value | null): Value {
  if (value === null) throw new Error("publish_claim left out what its outcome promises");
  return value;
}
