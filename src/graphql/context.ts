import type { Viewer } from "../access/viewer.ts";
import type { Config } from "../config.ts";
import type { Db } from "../database/client.ts";
import type { Log } from "../logging.ts";
import type { RowBudget } from "./connection.ts";
import type { Loaders } from "./loaders.ts";

/** What every resolver has in hand. Made anew for each request. */
export interface GraphContext {
  /** Who asks; null when no valid token was sent. */
  readonly viewer: Viewer | null;
  readonly db: Db;
  readonly config: Config;
  readonly log: Log;
  /** Batched, and limited to what the viewer may see: the one way to an object. */
  readonly loaders: Loaders;
  /** What lists may still return in this request. */
  readonly rows: RowBudget;
}
