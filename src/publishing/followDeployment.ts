// Tells what happens to a deployment, in order and without gaps. Reads only.
import { setTimeout as delay } from "node:timers/promises";
import { Repeater } from "@repeaterjs/repeater";
import type { Sight } from "../access/viewer.ts";
import type { Db } from "../database/client.ts";
import type { Log } from "../logging.ts";
import { AccessDenied, InvalidInput, StreamEnded } from "../refusal.ts";
import { within } from "../timing.ts";
import type { Hub } from "./hub.ts";
import { deploymentsBy, eventsAfter } from "./queries/deployments.ts";
import type { EventRow } from "./rows.ts";

/** What a stream of events needs. */
export interface FollowServices {
  readonly db: Db;
  readonly hub: Hub;
  readonly log: Log;
}

/** Whose stream it is, and from where on. */
export interface FollowRequest {
  readonly deploymentId: string;
  /** The last event that the client has seen; null: begin with the present state. */
  readonly afterSequence: number | null;
  readonly sight: Sight;
  /** Asked again and again while the stream lasts: null as soon as the caller's right has ended. */
  readonly sightNow: () => Promise<Sight | null>;
  /** Aborted when the client has gone away. */
  readonly gone: AbortSignal;
}

const BATCH = 100;
/** How long a read may stay unanswered; the next one takes another connection. */
const READ_MS = 3000;
/** How often the right to follow is asked again: twice within the 15 seconds after which a stream must have ended. */
const RIGHTS_MS = 6000;
/** How long that may take. */
const RIGHT_MS = 2000;

/**
 * A stream of a deployment's events: first its present state (or, resuming, what came after the event
 * seen last), then each change. It ends when everything is told and the deployment is not building; and
 * with an error, as its last item, when the caller may not follow any more, when neither notifications
 * nor the table can be read, and when this process shuts down.
 * @throws InvalidInput for a deployment that the caller may not see, and for an event that has not been.
 */
export async function deploymentFollow(
  { db, hub, log }: FollowServices,
  request: FollowRequest,
): Promise<AsyncIterable<EventRow | Error>> {
  const { deploymentId, afterSequence } = request;
  const place = (await deploymentsBy(db, request.sight, "id", [deploymentId]))[0];
  if (place === undefined) throw unknownDeployment();
  const over = place.state !== "building";
  if (afterSequence !== null && afterSequence > place.sequence && !over) {
    throw new InvalidInput("afterSequence", `is beyond the last change, which is number ${place.sequence}`);
  }

  return new Repeater<EventRow | Error>(async (push, stop) => {
    let seen = afterSequence ?? place.sequence - 1;
    let building = !over;
    let woken = Promise.withResolvers<void>();
    // Resolved once, with what ends the stream; a query that is never answered must not hide it.
    const failed = Promise.withResolvers<Error>();
    const ended = new AbortController();
    const goneAway = () => stop();
    request.gone.addEventListener("abort", goneAway);
    if (request.gone.aborted) stop();
    const unfollow = hub.follow(deploymentId, {
      seen: () => seen,
      wake: () => woken.resolve(),
      fail: (reason) => {
        failed.resolve(
          new StreamEnded(
            reason === "closing"
              ? `This server is shutting down. Subscribe again with afterSequence: ${seen} to learn what has become of the publish.`
              : `The database cannot be heard at the moment. Subscribe again with afterSequence: ${seen}.`,
          ),
        );
      },
    });
    const endedEarly = Promise.race([failed.promise, stop.then(() => null)]);
    void endedEarly.then(() => ended.abort());

    /** Tells everything there is to tell, then waits. @returns why the stream must end; null when it is told to its end. */
    async function tell(): Promise<Error | null> {
      let askedAt = performance.now();
      let rightAt = askedAt;
      for (;;) {
        // Whoever wakes from here on is heard below, and finds this read to have been too early.
        woken = Promise.withResolvers();
        const reading = eventsAfter(db, deploymentId, seen, BATCH);
        const events = await within(reading, READ_MS).catch((error: unknown) => {
          log.warn({ err: error, deploymentId }, "the events of a deployment could not be read");
          return null;
        });
        for (const event of events ?? []) {
          if (ended.signal.aborted) return null;
          await Promise.race([push(event), endedEarly]);
          seen = event.sequence;
          building = event.deployment.state === "building";
        }
        if (ended.signal.aborted) return null;
        if (events?.length === BATCH) continue;
        if (events !== null && !building) return null;
        const nextAsk = askedAt + RIGHTS_MS - performance.now();
        await sleep(events === null ? Math.min(1000, nextAsk) : nextAsk, woken.promise, ended.signal);
        if (ended.signal.aborted) return null;
        if (performance.now() < askedAt + RIGHTS_MS) continue;
        askedAt = performance.now();
        const end = await rightEnded(db, request, log);
        if (end instanceof Error) return end;
        if (end === "had") rightAt = askedAt;
        else if (askedAt - rightAt >= 2 * RIGHTS_MS) {
          return new StreamEnded(
            `Whether you may still follow cannot be found out at the moment. Subscribe again with afterSequence: ${seen}.`,
          );
        }
      }
    }

    try {
      const failure = await Promise.race([tell(), endedEarly]);
      if (failure !== null) await Promise.race([push(failure), stop]);
    } finally {
      unfollow();
      request.gone.removeEventListener("abort", goneAway);
      stop();
    }
  });
}

/** Waits until something happens, or until the time is over. */
async function sleep(ms: number, woken: Promise<void>, ended: AbortSignal): Promise<void> {
  const awake = new AbortController();
  const rest = delay(Math.max(ms, 0), undefined, { signal: AbortSignal.any([awake.signal, ended]) });
  await Promise.race([woken, rest.catch(() => undefined)]);
  awake.abort();
}

/** Why the stream must end; or whether the caller still has the right, as far as it can be found out. */
async function rightEnded(db: Db, request: FollowRequest, log: Log): Promise<Error | "had" | "unknown"> {
  try {
    const sight = await within(request.sightNow(), RIGHT_MS);
    if (sight === null) {
      return new AccessDenied(
        "UNAUTHENTICATED",
        "The token is no longer valid, so that this stream has ended.",
      );
    }
    const found = await within(deploymentsBy(db, sight, "id", [request.deploymentId]), RIGHT_MS);
    return found.length === 0
      ? new AccessDenied("FORBIDDEN", "This deployment is no longer yours to follow.")
      : "had";
  } catch (error) {
    log.warn({ err: error }, "the right to follow could not be asked");
    return "unknown";
  }
}

function unknownDeployment(): InvalidInput {
  return new InvalidInput("deploymentId", "names no deployment that you may see");
}
