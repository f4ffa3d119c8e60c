// What was measured, as numbers and as text.

export const CONTENDERS = ["product", "rest", "rest-function", "floor"] as const;
export type Contender = (typeof CONTENDERS)[number];

/** Share of the hand-written service that a reservation must reach, and where. */
export const CRITERION = { ratio: 0.65, connections: [8, 32] } as const;

/** One contender's turn in one round. */
export interface Turn {
  readonly reservationsPerSecond: number;
  /** Milliseconds. */
  readonly p50: number;
  readonly p99: number;
  readonly reservations: number;
  readonly someoneWasFaster: number;
  /** Processor time of the load generator for each reservation; null for pgbench, which is its own. */
  readonly loadMillis: number | null;
}

/** One size at one number of connections; each contender's turns in the order of the rounds. */
export interface Cell {
  readonly machines: number;
  readonly connections: number;
  readonly turns: Partial<Record<Contender, Turn[]>>;
}

/** What a reservation costs on a shelf in some state. Milliseconds and reservations a second. */
export interface Growth {
  readonly machines: number;
  readonly shelf: "all free" | "99.9 % held";
  readonly free: number;
  readonly one: Turn;
  /** Null where the free machines are too few for so many orders at once. */
  readonly eight: Turn | null;
  /** The same as one statement over one connection, without a service. */
  readonly sql: { readonly p50: number; readonly p99: number };
  /** Milliseconds of a refusal when everything is held; it counts every reason over every machine. */
  readonly refusal: number | null;
}

/** Median and extremes. */
export interface Spread {
  readonly median: number;
  readonly min: number;
  readonly max: number;
}

/** Whether the criterion is met in one cell. */
export interface Verdict {
  readonly machines: number;
  readonly connections: number;
  readonly ratio: Spread;
  readonly met: boolean;
}

/** The value below which this share of the values lies. */
export function quantile(values: readonly number[], share: number): number {
  const sorted = [...values].sort((a, b) => a - b);
  return sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * share))] ?? Number.NaN;
}

export function spread(values: readonly number[]): Spread {
  const sorted = [...values].sort((a, b) => a - b);
  const [low, high] = [sorted[Math.floor((sorted.length - 1) / 2)], sorted[Math.floor(sorted.length / 2)]];
  return {
    median: ((low ?? Number.NaN) + (high ?? Number.NaN)) / 2,
    min: sorted[0] ?? Number.NaN,
    max: sorted.at(-1) ?? Number.NaN,
  };
}

/** The product's rate as a share of another's, round by round: neighbours in time shared the same machine. */
export function ratio(cell: Cell, other: Contender): Spread | null {
  const [mine, theirs] = [cell.turns.product ?? [], cell.turns[other] ?? []];
  if (mine.length === 0 || theirs.length === 0) return null;
  return spread(
    mine.map(
      (turn, round) => turn.reservationsPerSecond / (theirs[round]?.reservationsPerSecond ?? Number.NaN),
    ),
  );
}

/** Judges every cell that the criterion names. */
export function verdicts(cells: readonly Cell[]): Verdict[] {
  return cells
    .filter((cell) => CRITERION.connections.some((connections) => connections === cell.connections))
    .flatMap((cell) => {
      const found = ratio(cell, "rest");
      return found === null
        ? []
        : [
            {
              machines: cell.machines,
              connections: cell.connections,
              ratio: found,
              met: found.median >= CRITERION.ratio,
            },
          ];
    });
}

/** Rates and latencies: one line a contender in each cell. */
export function cellsText(cells: readonly Cell[]): string {
  const rows = cells.flatMap((cell) =>
    CONTENDERS.flatMap((contender) => {
      const turns = cell.turns[contender] ?? [];
      if (turns.length === 0) return [];
      const rates = spread(turns.map((turn) => turn.reservationsPerSecond));
      const share = contender === "product" ? null : ratio(cell, contender);
      const faster = turns.reduce((sum, turn) => sum + turn.someoneWasFaster, 0);
      return [
        [
          whole(cell.machines),
          String(cell.connections),
          contender,
          whole(rates.median),
          `${whole(rates.min)}..${whole(rates.max)}`,
          spread(turns.map((turn) => turn.p50)).median.toFixed(2),
          spread(turns.map((turn) => turn.p99)).median.toFixed(2),
          share === null ? "" : spreadText(share),
          faster === 0 ? "" : whole(faster),
        ],
      ];
    }),
  );
  return table(
    [
      "machines",
      "connections",
      "contender",
      "per second",
      "min..max",
      "p50 ms",
      "p99 ms",
      "product / it",
      "faster",
    ],
    rows,
  );
}

/** Cost by size and shelf. */
export function growthText(growth: readonly Growth[]): string {
  return table(
    [
      "machines",
      "shelf",
      "free",
      "p50 ms at 1",
      "p99",
      "p50 ms at 8",
      "per second",
      "SQL alone p50",
      "p99",
      "refusal ms",
    ],
    growth.map((line) => [
      whole(line.machines),
      line.shelf,
      whole(line.free),
      line.one.p50.toFixed(2),
      line.one.p99.toFixed(2),
      line.eight === null ? "-" : line.eight.p50.toFixed(2),
      line.eight === null ? "-" : whole(line.eight.reservationsPerSecond),
      line.sql.p50.toFixed(2),
      line.sql.p99.toFixed(2),
      line.refusal === null ? "" : line.refusal.toFixed(1),
    ]),
  );
}

/** One line a verdict. */
export function verdictsText(found: readonly Verdict[]): string {
  return found
    .map(
      ({ machines, connections, ratio: share, met }) =>
        `${met ? "met   " : "MISSED"} ${whole(machines)} machines, ${connections} connections: ${spreadText(share)} of the hand-written service (${CRITERION.ratio} wanted)`,
    )
    .join("\n");
}

function spreadText({ median, min, max }: Spread): string {
  return `${median.toFixed(2)} (${min.toFixed(2)}..${max.toFixed(2)})`;
}

function whole(value: number): string {
  return Math.round(value).toLocaleString("en-US");
}

function table(header: readonly string[], rows: readonly (readonly string[])[]): string {
  const widths = header.map((name, column) =>
    Math.max(name.length, ...rows.map((row) => row[column]?.length ?? 0)),
  );
  // Words to the left, numbers to the right.
  const line = (row: readonly string[]) =>
    row
      .map((text, column) =>
        ["contender", "shelf"].includes(header[column] ?? "")
          ? text.padEnd(widths[column] ?? 0)
          : text.padStart(widths[column] ?? 0),
      )
      .join("  ")
      .trimEnd();
  return [line(header), widths.map((width) => "-".repeat(width)).join("  "), ...rows.map(line)].join("\n");
}
