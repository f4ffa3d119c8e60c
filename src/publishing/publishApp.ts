// Publishes a project's app. The claim is one call of a SQL function (migration publish_claim), and
// therefore one transaction; the build service is asked after it, by whoever's claim took.
// Twice at once: one claims, the others are told what runs, and reach the build service never.
import { randomUUID } from "node:crypto";
import { hostname } from "node:os";
import { moduleDisabled, slugInvalid, slugTaken } from "../access/results.ts";
import { slugVariants } from "../access/slug.ts";
import { sightParameter, type Viewer } from "../access/viewer.ts";
import type { PublishingConfig } from "../config.ts";
import type { Db } from "../database/client.ts";
import { TryAgain } from "../refusal.ts";
import type { Publisher } from "./publisher.ts";
import { publishClaim } from "./queries/claims.ts";
import { slugsInUse } from "./queries/deployments.ts";
import { type PublishAppResult, projectNotFound, publishCoolingDown, publishInProgress } from "./results.ts";
import { appSlugRead } from "./slugs.ts";

/** What publishing needs. */
export interface PublishAppServices {
  readonly db: Db;
  readonly config: PublishingConfig;
  readonly publisher: Publisher;
}

const SUGGESTIONS = 3;

/**
 * Claims the project's deployment, and lets the publisher carry the attempt out.
 * @throws TryAgain when the deployment stays locked, or changes hands faster than it can be read.
 */
export async function appPublish(
  services: PublishAppServices,
  viewer: Viewer | null,
  input: { projectId: string; slug: string; source: string },
): Promise<PublishAppResult> {
  return services.publisher.asking(claim(services, viewer, input));
}

async function claim(
  services: PublishAppServices,
  viewer: Viewer | null,
  input: { projectId: string; slug: string; source: string },
): Promise<PublishAppResult> {
  const { db, config, publisher } = services;
  const reading = appSlugRead(input.slug);
  if ("problem" in reading) return slugInvalid(input.slug, reading.problem);
  const { slug } = reading;
  const attemptId = randomUUID();
  const askedAt = performance.now();
  const answer = await publishClaim(db, {
    attemptId,
    projectId: input.projectId,
    organizationId: sightParameter(viewer),
    slug,
    source: input.source,
    owner: `${hostname()}:${process.pid}`,
    claimTimeoutSeconds: config.claimTimeoutSeconds,
    buildLimitSeconds: config.buildLimitSeconds,
    coolDownSeconds: config.coolDownSeconds,
  }).catch((error: unknown) => {
    // The answer may have got lost after the commit; then the claim is this process's all the same.
    if (!(error instanceof TryAgain)) publisher.adopt(attemptId, askedAt);
    throw error;
  });
  switch (answer.outcome) {
    case "not_found":
      return projectNotFound();
    case "module_disabled":
      return moduleDisabled("publishing");
    case "slug_taken":
      return slugTaken(slug, await suggestions(db, slug));
    case "cooling_down":
      return publishCoolingDown(answer.retryAt, answer.retryAfterMs);
    case "unsettled":
      throw new TryAgain(new Error("publish_claim met five different neighbours"));
    case "claimed": {
      const { deployment, takenOver } = answer;
      const { id: deploymentId, attempt } = deployment;
      publisher.begin({ deploymentId, attempt, attemptId, slug, source: input.source, askedAt });
      // An old attempt's build may have to be stopped.
      if (takenOver !== null) publisher.stopBuilds();
      return { kind: "PublishStarted", deployment, attempt };
    }
    case "in_progress":
      return publishInProgress(answer.deployment, config.heartbeatSeconds);
  }
}

/** Slugs like this one that were free a moment ago. */
async function suggestions(db: Db, slug: string): Promise<string[]> {
  const variants = slugVariants(slug, 12).filter((variant) => !("problem" in appSlugRead(variant)));
  const taken = new Set(await slugsInUse(db, variants));
  return variants.filter((variant) => !taken.has(variant)).slice(0, SUGGESTIONS);
}
