import type { Viewer } from "../access/viewer.ts";
import type { Config } from "../config.ts";
import type { Db } from "../database/client.ts";
import type { Log } from "../logging.ts";
import type { Hub } from "../publishing/hub.ts";
import type { Publisher } from "../publishing/publisher.ts";
import type { RowBudget } from "./connection.ts";
import type { Loaders } from "./loaders.ts";

/** What every resolver has in hand. Made anew for each request. */
export interface GraphContext {
  /** Who asks; null when no valid token was sent. */
  readonly viewer: Viewer | null;
  readonly db: Db;
  readonly config: Config;
  readonly log: Log;
  readonly publisher: Publisher;
  readonly hub: Hub;
  /** Batched, and limited to what the viewer may see: the one way to an object. */
  readonly loaders: Loaders;
  /** What lists may still return in this request. */
  readonly rows: RowBudget;
  /** Looks the request's credential up once more: who asks now, or null. For what lasts. */
  readonly viewerAgain: () => Promise<Viewer | null>;
  /** Forgets what the loaders have read and gives the lists their rows anew: for the next event of a stream. */
  renew(): void;
  /** Aborted when the client has gone away. */
  readonly gone: AbortSignal;
}
