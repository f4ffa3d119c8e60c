import { type ChildProcess, spawn } from "node:child_process";
import { waitUntil } from "./barrier.ts";

/** A `holdfast` process that was started for real. */
export interface HoldfastProcess {
  readonly child: ChildProcess;
  /** What it has written to both outputs so far. */
  output(): string;
  /** Waits for the line that says where it serves, and returns the address of GraphQL. */
  served(): Promise<string>;
  /** Its exit code; null when a signal ended it. */
  ended(): Promise<number | null>;
}

const running = new Set<ChildProcess>();

/**
 * Starts `holdfast` with these arguments.
 * @param environment added to this process's own, without its DATABASE_URL.
 */
export function holdfast(args: string[], environment: Record<string, string>): HoldfastProcess {
  const { DATABASE_URL: _, ...inherited } = process.env;
  const child = spawn(process.execPath, ["src/main.ts", ...args], {
    stdio: ["ignore", "pipe", "pipe"],
    env: { ...inherited, PORT: "0", HOLDFAST_LOG_LEVEL: "info", ...environment },
  });
  running.add(child);
  const chunks: Buffer[] = [];
  child.stdout?.on("data", (chunk: Buffer) => chunks.push(chunk));
  child.stderr?.on("data", (chunk: Buffer) => chunks.push(chunk));
  const ended = new Promise<number | null>((resolve) => {
    child.once("close", (code) => {
      running.delete(child);
      resolve(code);
    });
  });
  const output = () => Buffer.concat(chunks).toString("utf8");
  return {
    child,
    output,
    async served() {
      const address = () => /Holdfast is at (\S+)/.exec(output())?.[1];
      await waitUntil(() => address() !== undefined || child.exitCode !== null, "the server serves, or ends");
      const url = address();
      if (url === undefined) throw new Error(`the server ended instead of serving:\n${output()}`);
      return url;
    },
    ended: () => ended,
  };
}

/** Ends every process that a test has left running. */
export async function stopAll(): Promise<void> {
  for (const child of running) child.kill("SIGKILL");
}
