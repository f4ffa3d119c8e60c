// Imports machines from CSV.
// Twice at once: the second import waits for the first and finds its rows unchanged (see the
// migration import_machines).
import { isUtf8 } from "node:buffer";
import { pipeline } from "node:stream/promises";
import { type CsvError, parse } from "csv-parse";
import type { z } from "zod";
import type { Db } from "../database/client.ts";
import { withRetry } from "../database/violation.ts";
import { importedMachine } from "./inputs.ts";

/** One thing that is wrong with a file. */
export interface ImportProblem {
  /** Line of the file, from 1, on which the row begins; a quoted value may go on over further lines. */
  readonly line: number;
  /** The column's name; null when the whole line is meant. */
  readonly column: string | null;
  readonly reason: string;
}

/** How far an import is. */
export interface ImportProgress {
  readonly phase: "reading" | "writing";
  readonly rows: number;
}

export type ImportResult =
  | {
      readonly kind: "MachinesImported";
      readonly created: number;
      readonly updated: number;
      readonly unchanged: number;
      readonly sitesCreated: readonly string[];
      /** Existing machines whose status differs from the file's; it is kept. */
      readonly statusKept: number;
      /** true: all of this was found out, and nothing was written. */
      readonly dryRun: boolean;
    }
  | { readonly kind: "ImportRefused"; readonly problems: readonly ImportProblem[]; readonly rows: number };

const REQUIRED = ["asset_tag", "site", "manufacturer", "model", "cpu_cores", "memory_gib", "storage_gib"];
const OPTIONAL = [
  "location",
  "labels",
  "status",
  "monthly_price_eur",
  "height_units",
  "depth",
  "power_watts",
];
const MAX_ROWS = 200_000;
const MAX_PROBLEMS = 1000;
const PROGRESS_EVERY = 10_000;
/** Several times the longest row that is valid; what is longer is most likely a quote that nobody closed. */
const MAX_ROW_BYTES = 256 * 1024;
/** The rows travel as one jsonb array, which PostgreSQL limits to 256 MiB; short labels grow fourfold in it. */
const MAX_FILE_BYTES = 64 * 1024 * 1024;
/** Room for rows of several lines; the bound is for blank ones, which are no rows. */
const MAX_LINES = 10 * MAX_ROWS;

/** A row as machine_import takes it. */
type ImportedMachine = z.output<typeof importedMachine> & {
  readonly line: number;
  /** An empty status cell says nothing about a machine that exists. */
  readonly status_given: boolean;
};

/**
 * Creates or updates machines by asset tag, all rows or none; missing sites are made. Every problem is
 * reported with line and column, those of the file together with those that the database sees in its
 * good rows (the first 1,000, and how many more). At most 200,000 rows, 2,000,000 lines
 * and 64 MiB.
 * A held or bound machine keeps its identity, an installed one its site, height and depth, and every
 * existing machine its status. White space
 * around a value is dropped, and a line end within a quoted value is read as a line feed.
 * @throws TryAgain when a machine of the file stays locked; whatever the source throws.
 */
export async function machinesImport(
  db: Db,
  source: AsyncIterable<string | Buffer>,
  options: { readonly dryRun: boolean; readonly onProgress?: (progress: ImportProgress) => void },
): Promise<ImportResult> {
  const { machines, columns, problems, rows } = await fileRead(source, options.onProgress);
  if (columns === null || problems.count > MAX_PROBLEMS) return refused(problems, rows);
  // A file that is refused already is still shown to the database, which writes nothing.
  const writes = !options.dryRun && problems.count === 0;
  if (writes) options.onProgress?.({ phase: "writing", rows: machines.length });
  const answer = await machineImportCall(db, machines, columns, !writes);
  problems.merge(answer.conflicts, answer.conflict_count);
  if (problems.count > 0) return refused(problems, rows);
  return {
    kind: "MachinesImported",
    created: answer.created,
    updated: answer.updated,
    unchanged: answer.unchanged,
    sitesCreated: answer.sites,
    statusKept: answer.status_kept,
    dryRun: options.dryRun,
  };
}

/** With conflicts, there are no counts; conflicts are the first 1,000 by line. */
interface Answer {
  readonly conflicts: readonly ImportProblem[];
  readonly conflict_count: number;
  readonly created: number;
  readonly updated: number;
  readonly unchanged: number;
  readonly status_kept: number;
  readonly sites: readonly string[];
}

async function machineImportCall(
  db: Db,
  machines: readonly ImportedMachine[],
  columns: readonly string[],
  dryRun: boolean,
): Promise<Answer> {
  const rows = await withRetry(
    () => db.$queryRaw<{ answer: Answer }[]>`
      SELECT machine_import(${JSON.stringify(machines)}::jsonb, ${[...columns]}::text[], ${dryRun}::boolean) AS answer`,
  );
  if (rows[0] === undefined) throw new Error("machine_import returned no row");
  return rows[0].answer;
}

/** Problems as they are found: all are counted, the first 1,000 are reported. */
class Problems {
  count = 0;
  private readonly kept: ImportProblem[] = [];

  add(line: number, column: string | null, reason: string): void {
    this.count += 1;
    if (this.kept.length < MAX_PROBLEMS) this.kept.push({ line, column, reason });
  }

  /**
   * A list that was found apart, whose lines may come before those that are kept.
   * @param count how many the list stands for, of which it holds the first.
   */
  merge(problems: readonly ImportProblem[], count: number): void {
    this.count += count;
    for (const problem of problems) this.kept.push(problem);
  }

  /** The first 1,000 by line, and how many more there are. */
  report(): ImportProblem[] {
    const shown = this.kept.sort((a, b) => a.line - b.line).slice(0, MAX_PROBLEMS);
    const last = shown.at(-1);
    if (last !== undefined && this.count > shown.length) {
      const reason = `and ${this.count - shown.length} more problems`;
      shown.push({ line: last.line, column: null, reason });
    }
    return shown;
  }
}

function refused(problems: Problems, rows: number): ImportResult {
  return { kind: "ImportRefused", problems: problems.report(), rows };
}

interface FileContent {
  /** The rows without a problem. */
  readonly machines: readonly ImportedMachine[];
  /** null: the header is not usable, or the file was given up, so that its rows mean nothing. */
  readonly columns: readonly string[] | null;
  readonly problems: Problems;
  readonly rows: number;
}

async function fileRead(
  source: AsyncIterable<string | Buffer>,
  onProgress: (progress: ImportProgress) => void = () => undefined,
): Promise<FileContent> {
  const problems = new Problems();
  const machines: ImportedMachine[] = [];
  const firstLines = new Map<string, number>();
  const brokenLines = new Set<number>();
  let columns: readonly string[] | null = null;
  let rows = 0;
  /** The line after the last row; the next row begins there, or as many lines later as are blank. */
  let nextLine = 1;
  let blankLines = 0;
  let givenUp = false;

  function giveUp(line: number, reason: string): void {
    if (!givenUp) problems.add(line, null, reason);
    givenUp = true;
  }

  function rowRead(record: readonly string[], lastLine: number, blankSoFar: number): void {
    nextLine = lastLine + 1;
    blankLines = blankSoFar;
    if (givenUp) return;
    const line = lastLine - (record.join("").split("\n").length - 1);
    let broken = false;
    for (let at = line; at <= lastLine; at++) broken ||= brokenLines.has(at);
    if (columns === null) {
      const header = record.map((name) => name.trim());
      const found = headerProblems(header, line);
      problems.merge(found, found.length);
      if (broken || found.length > 0) givenUp = true;
      else columns = header;
      return;
    }
    rows += 1;
    if (rows > MAX_ROWS) {
      giveUp(line, `the file has more than ${MAX_ROWS} rows; split it`);
      return;
    }
    if (rows % PROGRESS_EVERY === 0) onProgress({ phase: "reading", rows });
    if (broken) return;
    if (record.length !== columns.length) {
      problems.add(line, null, `has ${record.length} fields; the header has ${columns.length}`);
      return;
    }
    const values = record.map((value) => value.trim());
    const given = Object.fromEntries(columns.map((name, at) => [name, values[at]]));
    const parsed = importedMachine.safeParse(given);
    if (!parsed.success) {
      for (const { path, message } of parsed.error.issues) problems.add(line, String(path[0]), message);
    }
    // A row with another problem has its tag too: whoever corrects the row meets the second one next.
    const tag = given["asset_tag"] ?? "";
    if (tag === "") return;
    const first = firstLines.get(tag);
    if (first !== undefined) {
      problems.add(line, "asset_tag", `stands on line ${first} already`);
      return;
    }
    firstLines.set(tag, line);
    if (parsed.success) machines.push({ ...parsed.data, line, status_given: Boolean(given["status"]) });
  }

  function rowSkipped(error: CsvError): void {
    const lastLine = Number(error["lines"]);
    // The rest of a broken row may look broken again; once is enough.
    if (givenUp || lastLine < nextLine) return;
    const blankSoFar = Number(error["empty_lines"]);
    const line = nextLine + blankSoFar - blankLines;
    nextLine = lastLine + 1;
    blankLines = blankSoFar;
    if (error.code === "CSV_MAX_RECORD_SIZE") {
      giveUp(line, TOO_LONG);
      return;
    }
    rows += columns === null ? 0 : 1;
    problems.add(line, columns?.[Number(error["index"])] ?? null, quoteProblem(error, lastLine));
    if (columns === null) givenUp = true;
  }

  const parser = parse({
    // wholeLines leaves no other line end, which is what makes the parser's line numbers exact.
    record_delimiter: "\n",
    skip_empty_lines: true,
    relax_column_count: true,
    max_record_size: MAX_ROW_BYTES,
    skip_records_with_error: true,
    on_record: (record: string[], { lines, empty_lines }) => {
      rowRead(record, lines, empty_lines);
      return null;
    },
    on_skip: (error) => {
      if (error !== undefined) rowSkipped(error);
      return undefined;
    },
  });
  await pipeline(
    wholeLines(source, {
      stopped: () => givenUp,
      giveUp,
      brokenLine(line) {
        brokenLines.add(line);
        problems.add(line, null, "is not valid UTF-8");
      },
    }),
    parser,
  );

  if (columns === null && problems.count === 0) {
    giveUp(1, `the file is empty; its first line must name the columns (${REQUIRED.join(", ")})`);
  }
  onProgress({ phase: "reading", rows });
  return { machines, columns: givenUp ? null : columns, problems, rows };
}

const TOO_LONG = `this row is longer than ${MAX_ROW_BYTES} bytes; most likely a quote in it is not closed`;

function quoteProblem(error: CsvError, line: number): string {
  switch (error.code as string) {
    case "CSV_QUOTE_NOT_CLOSED":
      return "a quote that opens in this row is not closed before the file ends";
    case "CSV_INVALID_CLOSING_QUOTE":
      return `a quoted value goes on after its closing quote, on line ${line}; a quote within it is written twice`;
    case "INVALID_OPENING_QUOTE":
      return "a quote stands within a value; put the whole value in quotes, and write the quote within it twice";
    default:
      return error.message;
  }
}

const LINE_FEED = 10;
const CARRIAGE_RETURN = 13;

/**
 * The source as text in whole lines, each ended by a line feed, without the byte order mark. What is
 * no UTF-8 is reported with its line and replaced, so that the rows after it are still looked at.
 */
async function* wholeLines(
  source: AsyncIterable<string | Buffer>,
  reader: {
    stopped(): boolean;
    giveUp(line: number, reason: string): void;
    brokenLine(line: number): void;
  },
): AsyncGenerator<string> {
  let line = 1;
  let size = 0;
  let rest: Buffer = Buffer.alloc(0);

  function lines(bytes: Buffer): string {
    if (!isUtf8(bytes)) {
      // One character a byte, so that a line can be turned back into its bytes.
      for (const [at, each] of bytes
        .toString("latin1")
        .split(/\r\n|\r|\n/)
        .entries()) {
        if (!isUtf8(Buffer.from(each, "latin1"))) reader.brokenLine(line + at);
      }
    }
    const decoded = bytes.toString("utf8").replace(/\r\n?/g, "\n");
    const marked = line === 1 && decoded.startsWith("\uFEFF");
    line += decoded.split("\n").length - 1;
    return marked ? decoded.slice(1) : decoded;
  }

  for await (const chunk of source) {
    const bytes = Buffer.concat([rest, typeof chunk === "string" ? Buffer.from(chunk) : chunk]);
    size += bytes.length - rest.length;
    if (size > MAX_FILE_BYTES) {
      reader.giveUp(line, `the file is larger than ${MAX_FILE_BYTES / 1024 / 1024} MiB; split it`);
      return;
    }
    // What follows the last line end waits: the chunk may end within a character. So does a final
    // carriage return, since a line feed may follow it.
    const end =
      Math.max(bytes.lastIndexOf(LINE_FEED), bytes.subarray(0, -1).lastIndexOf(CARRIAGE_RETURN)) + 1;
    rest = bytes.subarray(end);
    if (end > 0) yield lines(bytes.subarray(0, end));
    if (rest.length > MAX_ROW_BYTES) reader.giveUp(line, TOO_LONG);
    if (line > MAX_LINES) reader.giveUp(line, `the file has more than ${MAX_LINES} lines; split it`);
    if (reader.stopped()) return;
  }
  if (rest.length > 0) yield lines(rest);
}

function headerProblems(columns: readonly string[], line: number): ImportProblem[] {
  const known = [...REQUIRED, ...OPTIONAL];
  return [
    ...REQUIRED.filter((name) => !columns.includes(name)).map((name) => ({
      line,
      column: name,
      reason: "this column is required and missing",
    })),
    ...columns
      .filter((name) => !known.includes(name))
      .map((name) => ({
        line,
        column: name === "" ? null : name,
        reason:
          name === "" ? "a column has no name" : `there is no such column; known are ${known.join(", ")}`,
      })),
    ...columns
      .filter((name, at) => name !== "" && columns.indexOf(name) !== at)
      .map((name) => ({ line, column: name, reason: "this column stands twice in the header" })),
  ];
}
