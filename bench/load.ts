// The load generator, in a process of its own: N keep-alive connections, each sending its next order
// when it has the answer to the last. It speaks HTTP over bare sockets, because it shares the
// processors with what it measures and node:http's client costs several times as much.
import { connect, type Socket } from "node:net";
import {
  ANY_MACHINE,
  ORDER_REFERENCE,
  ordersShuffled,
  organizationId,
  type Requirements,
} from "./dataset.ts";

/** What to send. */
export interface LoadJob {
  readonly api: "graphql" | "rest";
  readonly url: string;
  readonly secret: string;
  readonly connections: number;
  /** Orders that open connections, plans and pools before the clock starts. */
  readonly ramp: number;
  /** Orders at the most. */
  readonly orders: number;
  /** No order is begun after so many seconds. */
  readonly seconds: number;
  /** Orders as a storefront sends them, or such that every machine fits. */
  readonly wanted: "storefront" | "anything";
  /** Begins every idempotency key; unique. */
  readonly run: string;
  /** What every answer must be. SomeoneWasFaster is an answer of MachineReserved's race. */
  readonly expect: "MachineReserved" | "NothingAvailable";
}

/** What came back. */
export interface LoadResult {
  /** Answers as expected, without the ramp's. */
  readonly answered: number;
  readonly someoneWasFaster: number;
  /** Reservations made before the clock started. */
  readonly ramped: number;
  readonly seconds: number;
  /** Milliseconds of each expected answer. */
  readonly latencies: number[];
  /** Processor time of this process in the measured time. */
  readonly processorSeconds: number;
}

/** What this process reports. */
export type LoadReport = { readonly result: LoadResult } | { readonly error: string };

const MUTATION = `mutation Reserve($input: ReserveMachineInput!) {
  reserveMachine(input: $input) {
    __typename
    ... on MachineReserved {
      reservation {
        id state orderReference heldAt expiresAt
        choice { rank assetTag siteCode model cpuCores memoryGib storageGib labels explanation }
      }
    }
    ... on Refusal { message nextAction retryAfterMs }
  }
}`;

const ORDERS = ordersShuffled();

process.on("message", (job: LoadJob) => {
  run(job).then(
    (result) => process.send?.({ result } satisfies LoadReport),
    (error: unknown) =>
      process.send?.({
        error: error instanceof Error ? error.message : String(error),
      } satisfies LoadReport),
  );
});
process.on("disconnect", () => process.exit());

async function run(job: LoadJob): Promise<LoadResult> {
  const { hostname, port, host } = new URL(job.url);
  const connections = await Promise.all(
    Array.from({ length: job.connections }, () => Connection.open(hostname, Number(port))),
  );
  const head = `POST ${job.api === "graphql" ? "/graphql" : "/reservations"} HTTP/1.1\r\nHost: ${host}\r\nAuthorization: Bearer ${job.secret}\r\nAccept: application/json\r\nContent-Type: application/json\r\nContent-Length: `;
  let next = 0;
  const latencies: number[] = [];
  let someoneWasFaster = 0;

  const send = async (connection: Connection, index: number): Promise<boolean> => {
    const body = bodyOf(job, index);
    const answer = await connection.request(`${head}${body.length}\r\n\r\n${body}`);
    const kind = kindOf(job.api, answer);
    if (kind === job.expect) return true;
    if (kind === "SomeoneWasFaster" && job.expect === "MachineReserved") return false;
    throw new Error(`expected ${job.expect}, and was answered: ${answer.slice(0, 1000)}`);
  };
  const all = (work: (connection: Connection) => Promise<void>) => Promise.all(connections.map(work));

  try {
    let ramped = 0;
    await all(async (connection) => {
      while (next < job.ramp) if (await send(connection, next++)) ramped++;
    });
    next = job.ramp;
    const last = job.ramp + job.orders;
    const cpu = process.cpuUsage();
    const started = performance.now();
    const until = started + job.seconds * 1000;
    await all(async (connection) => {
      while (next < last) {
        const before = performance.now();
        if (before >= until) return;
        if (await send(connection, next++)) latencies.push(performance.now() - before);
        else someoneWasFaster++;
      }
    });
    const seconds = (performance.now() - started) / 1000;
    const { user, system } = process.cpuUsage(cpu);
    return {
      answered: latencies.length,
      someoneWasFaster,
      ramped,
      seconds,
      latencies,
      processorSeconds: (user + system) / 1e6,
    };
  } finally {
    // The servers close idle connections after seconds; a job never meets one that is about to be.
    for (const connection of connections) connection.close();
  }
}

function bodyOf(job: LoadJob, index: number): string {
  const requirements =
    job.wanted === "anything" ? ANY_MACHINE : (ORDERS[index % ORDERS.length] as Requirements);
  const order = { orderReference: ORDER_REFERENCE, idempotencyKey: `${job.run}-${index}`, requirements };
  const organization = organizationId(index);
  if (job.api === "rest") return JSON.stringify({ organizationId: organization, ...order });
  const id = Buffer.from(`Organization:${organization}`).toString("base64");
  return JSON.stringify({ query: MUTATION, variables: { input: { organizationId: id, ...order } } });
}

function kindOf(api: LoadJob["api"], answer: string): string {
  try {
    const json = JSON.parse(answer);
    const result = api === "graphql" ? json.data.reserveMachine : json;
    const kind: string = api === "graphql" ? result.__typename : result.kind;
    if (kind !== "MachineReserved") return kind;
    const { state, choice } = result.reservation;
    return typeof choice.assetTag === "string" && /^held$/i.test(state)
      ? kind
      : "a reservation without its parts";
  } catch {
    return "no JSON of the expected form";
  }
}

/** One keep-alive connection, one request at a time. Knows as much HTTP as the contenders answer with. */
class Connection {
  readonly #socket: Socket;
  #received = "";
  #settle: { resolve(body: string): void; reject(error: Error): void } | null = null;

  static open(host: string, port: number): Promise<Connection> {
    return new Promise((resolve, reject) => {
      const socket = connect({ host, port, noDelay: true });
      socket.once("error", reject);
      socket.once("connect", () => {
        socket.off("error", reject);
        resolve(new Connection(socket));
      });
    });
  }

  private constructor(socket: Socket) {
    this.#socket = socket;
    // One character a byte, so that lengths in the head are lengths of the string.
    socket.setEncoding("latin1");
    socket.on("data", (chunk: string) => {
      this.#received += chunk;
      this.#answer();
    });
    socket.on("error", (error) => this.#settle?.reject(error));
    socket.on("close", () => this.#settle?.reject(new Error("the connection was closed by the service")));
  }

  request(text: string): Promise<string> {
    return new Promise((resolve, reject) => {
      this.#settle = { resolve, reject };
      this.#socket.write(text, "latin1");
    });
  }

  close(): void {
    this.#settle = null;
    this.#socket.destroy();
  }

  #answer(): void {
    const head = this.#received.indexOf("\r\n\r\n");
    if (head < 0) return;
    const body = this.#received.slice(head + 4);
    const length = /\r\ncontent-length: *(\d+)/i.exec(this.#received.slice(0, head))?.[1];
    const whole = length === undefined ? unchunked(body) : body.length >= Number(length) ? body : null;
    if (whole === null) return;
    const settle = this.#settle;
    this.#received = "";
    this.#settle = null;
    settle?.resolve(whole);
  }
}

/** Joins the chunks of a chunked body; null while some are missing. */
function unchunked(body: string): string | null {
  let joined = "";
  for (let at = 0; ; ) {
    const line = body.indexOf("\r\n", at);
    if (line < 0) return null;
    const size = Number.parseInt(body.slice(at, line), 16);
    if (body.length < line + 4 + size) return null;
    if (size === 0) return joined;
    joined += body.slice(line + 2, line + 2 + size);
    at = line + 4 + size;
  }
}
