import type { ModuleDisabled, SlugInvalid, SlugTaken } from "../access/results.ts";
import type { Refusal } from "../refusal.ts";
import type { CoolingDown } from "../reservations/results.ts";
import type { DeploymentRow, ProjectRow } from "./rows.ts";

/** The project exists now. */
export interface ProjectCreated {
  readonly kind: "ProjectCreated";
  readonly project: ProjectRow;
}
/** What became of createProject. */
export type CreateProjectResult = ProjectCreated;

/** This attempt is the caller's own; its build is being asked for. */
export interface PublishStarted {
  readonly kind: "PublishStarted";
  readonly deployment: DeploymentRow;
  readonly attempt: number;
}
/** Somebody is publishing the project already. */
export interface PublishInProgress extends Refusal<"PublishInProgress"> {
  readonly deployment: DeploymentRow;
  readonly attempt: number;
  /** When the running attempt began. */
  readonly since: Date;
  readonly heartbeatAt: Date;
}
/** No such project among those the caller may see. */
export type ProjectNotFound = Refusal<"ProjectNotFound">;
/** What became of publishApp. */
export type PublishAppResult =
  | PublishStarted
  | PublishInProgress
  | SlugTaken
  | SlugInvalid
  | ProjectNotFound
  | CoolingDown
  | ModuleDisabled;

/** The attempt is over for good. */
export interface PublishCancelled {
  readonly kind: "PublishCancelled";
  readonly deployment: DeploymentRow;
}
/** The attempt that was named does not build (any more). */
export interface PublishNotRunning extends Refusal<"PublishNotRunning"> {
  readonly deployment: DeploymentRow;
}
/** No such deployment among those the caller may see. */
export type DeploymentNotFound = Refusal<"DeploymentNotFound">;
/** What became of cancelPublish. */
export type CancelPublishResult = PublishCancelled | PublishNotRunning | DeploymentNotFound;

/**
 * @param deployment a row that was read while it was building.
 * @param heartbeatSeconds rhythm of the beats, which is when a look is worth while again.
 */
export function publishInProgress(deployment: DeploymentRow, heartbeatSeconds: number): PublishInProgress {
  const { claimedAt, heartbeatAt } = deployment;
  if (claimedAt === null || heartbeatAt === null) throw new Error("a running publish has no claim");
  return {
    kind: "PublishInProgress",
    message: `A build of this project is running (attempt ${deployment.attempt} as "${deployment.slug}", since ${claimedAt.toISOString()}, last heard of at ${heartbeatAt.toISOString()}). Nothing is wrong and there is nothing to fix: wait for it, and follow it with deploymentEvents. Nothing was started for this request; if it was for another slug or source, send it again when that attempt has ended.`,
    nextAction: "FOLLOW",
    retryAfterMs: heartbeatSeconds * 1000,
    deployment,
    attempt: deployment.attempt,
    since: claimedAt,
    heartbeatAt,
  };
}

export function projectNotFound(): ProjectNotFound {
  return {
    kind: "ProjectNotFound",
    message:
      "There is no such project among those you may see. Nothing was published; check the id, or list `projects`.",
    nextAction: "FIX_REQUEST",
    retryAfterMs: null,
  };
}

/** @param retryAfterMs until `retryAt`, by the database's clock. */
export function publishCoolingDown(retryAt: Date, retryAfterMs: number): CoolingDown {
  return {
    kind: "CoolingDown",
    message: `This project was published a moment ago. Nothing was started; send the same request again at ${retryAt.toISOString()}.`,
    nextAction: "WAIT",
    retryAfterMs,
    retryAt,
  };
}

/** @param asked the attempt that was to be cancelled. */
export function publishNotRunning(deployment: DeploymentRow, asked: number): PublishNotRunning {
  const running = deployment.state === "building";
  return {
    kind: "PublishNotRunning",
    message:
      asked > deployment.attempt
        ? `There is no attempt ${asked} yet; the last one is ${deployment.attempt}. Nothing was cancelled.`
        : running && deployment.attempt !== asked
          ? `Attempt ${asked} does not run; attempt ${deployment.attempt} does. Nothing was cancelled. To cancel that one, name it.`
          : `Attempt ${asked} is not running: the deployment is ${deployment.state.toUpperCase()} with attempt ${deployment.attempt}. Nothing was cancelled, and there is nothing to cancel.`,
    nextAction: asked > deployment.attempt ? "FIX_REQUEST" : running ? "FOLLOW" : "USE_EXISTING",
    retryAfterMs: null,
    deployment,
  };
}

export function deploymentNotFound(): DeploymentNotFound {
  return {
    kind: "DeploymentNotFound",
    message: "There is no such deployment among those you may see. Nothing was cancelled; check the id.",
    nextAction: "FIX_REQUEST",
    retryAfterMs: null,
  };
}
