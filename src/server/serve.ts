import { once } from "node:events";
import type { AddressInfo } from "node:net";
import { authenticateWith } from "../access/authenticate.ts";
import type { Config } from "../config.ts";
import type { Log } from "../logging.ts";
import { orchestratorStart } from "../orchestrator/simulated.ts";
import { hubOpen } from "../publishing/hub.ts";
import { orchestratorAt } from "../publishing/orchestrator.ts";
import { publisherOpen, reaperStart } from "../publishing/publisher.ts";
import { sweeperStart } from "../workers/sweeper.ts";
import { demoFill } from "./demo.ts";
import { apiOpen } from "./http.ts";
import { databaseReady, operatorTokenEnsure } from "./open.ts";

/** A server that runs. */
export interface Serving {
  /** Where GraphQL and GraphiQL are. */
  readonly url: string;
  /** File with the operator token, if one was generated. */
  readonly tokenFile: string | null;
  /**
   * Drains: no new request, those that run are answered, streams end, running publishes are handed back;
   * then workers, pool and embedded server end.
   */
  stop(): Promise<void>;
}

/**
 * Opens the database, and serves the API; in this process also the sweeper (unless it is turned off), what
 * publishing needs, and a simulated build service if no real one is configured.
 */
export async function serve(config: Config, log: Log): Promise<Serving> {
  // Each is ended in reverse order, whether the start or the service is over.
  const opened: (() => Promise<unknown>)[] = [];
  const close = async () => {
    for (const end of opened.splice(0).reverse()) await end();
  };
  try {
    const database = await databaseReady(config, log, true);
    opened.push(() => database.close());
    const { db } = database;
    const tokenFile = await operatorTokenEnsure(database, config);
    if (config.demo && (await demoFill(db))) log.info("demo data added");
    if (config.sweepSeconds > 0) {
      const sweeper = sweeperStart(db, config.sweepSeconds, log);
      opened.push(() => sweeper.stop());
    }
    const orchestratorUrl = config.publishing.orchestratorUrl ?? (await simulatedStart(config, log, opened));
    const reaper = reaperStart(db, config.publishing, log);
    opened.push(() => reaper.stop());
    const publisher = publisherOpen({
      db,
      log,
      config: config.publishing,
      orchestrator: orchestratorAt(orchestratorUrl, config.publishing.orchestratorTimeoutMs),
    });
    const hub = hubOpen(db, config.listenDatabaseUrl ?? database.url, log);
    const api = apiOpen({
      db,
      config,
      log,
      authenticate: authenticateWith(db, config.jwt, log),
      publisher,
      hub,
    });
    // At the same time: no new request; streams end with a word; publishes are handed back at once, not
    // after the last answer. What a late request claims is handed back by the publisher as well.
    opened.push(async () => {
      await Promise.all([api.drain(), hub.stop(), publisher.stop()]);
      await publisher.stop();
    });
    api.server.listen(config.port, config.host);
    await once(api.server, "listening");
    const { port } = api.server.address() as AddressInfo;
    const host = config.host.includes(":") ? `[${config.host}]` : config.host;
    return { url: `http://${host}:${port}/graphql`, tokenFile, stop: close };
  } catch (error) {
    await close();
    throw error;
  }
}

/** The build service for those who have none yet. */
async function simulatedStart(config: Config, log: Log, opened: (() => Promise<unknown>)[]): Promise<string> {
  const simulated = await orchestratorStart({
    host: "127.0.0.1",
    port: 0,
    buildSeconds: 6,
    appDomain: config.publishing.appDomain,
  });
  opened.push(() => simulated.close());
  log.warn(
    { url: simulated.url },
    "ORCHESTRATOR_URL is not set: a simulated build service runs beside this server, and nothing is really built",
  );
  return simulated.url;
}
