// Wakes those of this process who follow a deployment, whichever process has written. Notifications are
// the hint that makes it quick; a look at the table every few seconds makes it sure, also when
// notifications cannot be heard. When the table cannot be read any more, everybody is told so.
import { setTimeout as delay } from "node:timers/promises";
import type { Db } from "../database/client.ts";
import { deploymentListen } from "../database/listen.ts";
import type { Log } from "../logging.ts";
import { within } from "../timing.ts";
import { deploymentPlaces } from "./queries/deployments.ts";

/** Somebody who follows a deployment. */
export interface Follower {
  /** The number of the last event that he has seen. */
  seen(): number;
  /** There may be something to read. */
  wake(): void;
  /** Nothing can be heard any more; the stream is to end with this reason. */
  fail(reason: "lost" | "closing"): void;
}

/** Wakes followers. */
export interface Hub {
  /** @returns what takes the follower off again; repeatable. */
  follow(deploymentId: string, follower: Follower): () => void;
  /** How many follow. */
  followers(): number;
  /** Ends every stream, and the listening connection. */
  stop(): Promise<void>;
}

const LOOK_MS = 3000;
const LOST_AFTER_MS = 12_000;

/** @param listenUrl where to listen; see deploymentListen. */
export function hubOpen(db: Db, listenUrl: string, log: Log): Hub {
  const followers = new Map<string, Set<Follower>>();
  const closing = new AbortController();
  let lookedAt = performance.now();

  const all = () => [...followers.values()].flatMap((set) => [...set]);
  const listener = deploymentListen(
    listenUrl,
    {
      onNotice: (deploymentId) => {
        for (const follower of followers.get(deploymentId) ?? []) follower.wake();
      },
      onConnect: () => {
        for (const follower of all()) follower.wake();
      },
    },
    log,
  );

  const looking = (async () => {
    while (!closing.signal.aborted) {
      await delay(LOOK_MS, undefined, { signal: closing.signal, ref: false }).catch(() => undefined);
      if (closing.signal.aborted) return;
      if (followers.size === 0) {
        lookedAt = performance.now();
        continue;
      }
      try {
        const asking = deploymentPlaces(db, [...followers.keys()]);
        const places = await within(asking, LOOK_MS, closing.signal);
        lookedAt = performance.now();
        for (const place of places) {
          for (const follower of followers.get(place.id) ?? []) {
            if (follower.seen() < place.sequence) follower.wake();
          }
        }
      } catch (error) {
        if (closing.signal.aborted) return;
        log.warn({ err: error }, "deployments that are followed could not be looked at");
        // A notification alone is of no use: what happened stands in the table.
        if (performance.now() - lookedAt >= LOST_AFTER_MS) {
          for (const follower of all()) follower.fail("lost");
        }
      }
    }
  })();

  return {
    follow(deploymentId, follower) {
      if (closing.signal.aborted) {
        follower.fail("closing");
        return () => undefined;
      }
      const set = followers.get(deploymentId) ?? new Set();
      followers.set(deploymentId, set.add(follower));
      return () => {
        set.delete(follower);
        if (set.size === 0 && followers.get(deploymentId) === set) followers.delete(deploymentId);
      };
    },
    followers: () => all().length,
    async stop() {
      closing.abort();
      for (const follower of all()) follower.fail("closing");
      await Promise.all([looking, listener.close()]);
    },
  };
}
