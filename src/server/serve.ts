import { once } from "node:events";
import type { AddressInfo } from "node:net";
import { authenticateWith } from "../access/authenticate.ts";
import type { Config } from "../config.ts";
import type { Log } from "../logging.ts";
import { type Sweeper, sweeperStart } from "../workers/sweeper.ts";
import { demoFill } from "./demo.ts";
import { apiOpen } from "./http.ts";
import { databaseReady, operatorTokenEnsure } from "./open.ts";

/** A server that runs. */
export interface Serving {
  /** Where GraphQL and GraphiQL are. */
  readonly url: string;
  /** File with the operator token, if one was generated. */
  readonly tokenFile: string | null;
  /** Drains: no new request, those that run are answered, then sweeper, pool and embedded server end. */
  stop(): Promise<void>;
}

/** Opens the database, and serves the API and (unless it is turned off) the sweeper in this process. */
export async function serve(config: Config, log: Log): Promise<Serving> {
  const database = await databaseReady(config, log, true);
  let sweeper: Sweeper | null = null;
  try {
    const tokenFile = await operatorTokenEnsure(database, config);
    if (config.demo && (await demoFill(database.db))) log.info("demo data added");
    const api = apiOpen({
      db: database.db,
      config,
      log,
      authenticate: authenticateWith(database.db, config.jwt, log),
    });
    api.server.listen(config.port, config.host);
    await once(api.server, "listening");
    if (config.sweepSeconds > 0) sweeper = sweeperStart(database.db, config.sweepSeconds, log);
    const { port } = api.server.address() as AddressInfo;
    const host = config.host.includes(":") ? `[${config.host}]` : config.host;
    return {
      url: `http://${host}:${port}/graphql`,
      tokenFile,
      async stop() {
        await api.drain();
        await sweeper?.stop();
        await database.close();
      },
    };
  } catch (error) {
    await sweeper?.stop();
    await database.close();
    throw error;
  }
}
