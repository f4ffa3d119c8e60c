import { once } from "node:events";
import { type AddressInfo, connect, createServer, type Socket } from "node:net";

/** The wire between a pool and its database, with a hand on it. */
export interface Wire {
  /** The same database as the one given, by way of this wire. */
  readonly url: string;
  /**
   * From now on a connection over which `text` is asked gets no more answers: what is asked still
   * arrives, is done and is committed.
   */
  holdAnswersTo(text: string): void;
  /** Delivers what was held back, and everything after it. */
  deliver(): void;
  /** Breaks every connection: what was held back is lost. Later ones go through. */
  cut(): void;
  close(): Promise<void>;
}

/** A TCP proxy in front of a database. */
export async function wireOpen(databaseUrl: string): Promise<Wire> {
  const target = new URL(databaseUrl);
  const pairs = new Set<{ client: Socket; server: Socket }>();
  let wanted: string | null = null;
  const proxy = createServer((client) => {
    const server = connect(Number(target.port || 5432), target.hostname);
    const pair = { client, server };
    pairs.add(pair);
    client.on("data", (chunk) => {
      if (wanted !== null && chunk.includes(wanted)) server.unpipe(client);
      server.write(chunk);
    });
    client.on("end", () => server.end());
    server.pipe(client);
    for (const socket of [client, server]) {
      socket.on("error", () => undefined);
      socket.on("close", () => {
        client.destroy();
        server.destroy();
        pairs.delete(pair);
      });
    }
  }).listen(0, "127.0.0.1");
  await once(proxy, "listening");
  const url = new URL(databaseUrl);
  url.hostname = "127.0.0.1";
  url.port = String((proxy.address() as AddressInfo).port);
  const cut = () => {
    wanted = null;
    for (const { client, server } of pairs) {
      client.destroy();
      server.destroy();
    }
  };
  return {
    url: url.href,
    holdAnswersTo(text) {
      wanted = text;
    },
    deliver() {
      wanted = null;
      for (const { client, server } of pairs) server.pipe(client);
    },
    cut,
    async close() {
      cut();
      proxy.close();
      await once(proxy, "close");
    },
  };
}
