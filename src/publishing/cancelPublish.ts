// Ends a running publish by decision. One call of a SQL function (migration publish_claim), and therefore
// one transaction; the build service is told after it. Twice at once: one cancels, the other is told that
// it does not run.
import { publishingSightOf, sightParameter, type Viewer } from "../access/viewer.ts";
import type { Db } from "../database/client.ts";
import type { Publisher } from "./publisher.ts";
import { publishCancelCall } from "./queries/claims.ts";
import { deploymentsBy } from "./queries/deployments.ts";
import { type CancelPublishResult, deploymentNotFound, publishNotRunning } from "./results.ts";

/**
 * Cancels one attempt for good, whatever its build does afterwards. Works with the switch closed.
 * @throws TryAgain when the deployment stays locked.
 */
export async function publishCancel(
  { db, publisher }: { db: Db; publisher: Publisher },
  viewer: Viewer | null,
  deploymentId: string,
  attempt: number,
): Promise<CancelPublishResult> {
  const outcome = await publishCancelCall(db, deploymentId, sightParameter(viewer), attempt);
  if (outcome === "not_found") return deploymentNotFound();
  const deployment = (await deploymentsBy(db, publishingSightOf(viewer), "id", [deploymentId]))[0];
  if (deployment === undefined) throw new Error("a deployment that was decided on is gone");
  if (outcome === "not_running") return publishNotRunning(deployment, attempt);
  publisher.stopBuilds();
  return { kind: "PublishCancelled", deployment };
}
