// Imports machines from CSV.
// Twice at once: the second import waits for the first and finds its rows unchanged (see the
// migration import_machines).
import { type CsvError, parse } from "csv-parse";
import type { z } from "zod";
import type { Db } from "../database/client.ts";
import { withRetry } from "../database/violation.ts";
import { importedMachine } from "./inputs.ts";

/** One thing that is wrong with a file. */
export interface ImportProblem {
  /** Line of the file, from 1; the header is line 1. */
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
const OPTIONAL = ["location", "labels", "status", "monthly_price_eur"];
const MAX_ROWS = 200_000;
const MAX_PROBLEMS = 1000;
const PROGRESS_EVERY = 10_000;

type ImportedMachine = z.output<typeof importedMachine> & { readonly line: number };

/**
 * Creates or updates machines by asset tag, all rows or none; missing sites are made. Every problem of
 * the file is reported (at most 1,000, and how many more), with line and column. At most 200,000 rows.
 * A held or bound machine keeps its identity, and every existing machine its status.
 */
export async function machinesImport(
  db: Db,
  source: AsyncIterable<string | Buffer>,
  options: { readonly dryRun: boolean; readonly onProgress?: (progress: ImportProgress) => void },
): Promise<ImportResult> {
  const file = await fileRead(source, options.onProgress ?? (() => undefined));
  if (file.problems.length > 0) return refused(file.problems, file.count);
  options.onProgress?.({ phase: "writing", rows: file.machines.length });
  const answer = await machineImportCall(db, file.machines, file.columns, options.dryRun);
  if (answer.conflicts.length > 0) return refused(answer.conflicts, file.count);
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

interface Answer {
  readonly conflicts: readonly ImportProblem[];
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

interface FileContent {
  readonly machines: ImportedMachine[];
  readonly columns: readonly string[];
  readonly problems: ImportProblem[];
  readonly count: number;
}

async function fileRead(
  source: AsyncIterable<string | Buffer>,
  onProgress: (progress: ImportProgress) => void,
): Promise<FileContent> {
  const machines: ImportedMachine[] = [];
  const problems: ImportProblem[] = [];
  const firstLines = new Map<string, number>();
  let columns: readonly string[] = [];
  let count = 0;
  const parser = parse({ info: true, skip_empty_lines: true, relax_column_count: true });
  const feeding = feed(source, parser);
  try {
    // The line that `info` gives is the last of the record; a quoted value may span several.
    let previousLine = 0;
    for await (const { record, info } of parser as AsyncIterable<{
      record: string[];
      info: { lines: number };
    }>) {
      const line = Math.max(previousLine + 1, info.lines - record.join("").split(/\r\n|\n|\r/).length + 1);
      previousLine = info.lines;
      if (columns.length === 0) {
        columns = record.map((name) => name.trim());
        problems.push(...headerProblems(columns, line));
        if (problems.length > 0) break;
        continue;
      }
      count += 1;
      if (count > MAX_ROWS) {
        problems.push({ line, column: null, reason: `the file has more than ${MAX_ROWS} rows; split it` });
        break;
      }
      if (count % PROGRESS_EVERY === 0) onProgress({ phase: "reading", rows: count });
      if (record.length !== columns.length) {
        problems.push({
          line,
          column: null,
          reason: `has ${record.length} fields; the header has ${columns.length}`,
        });
        continue;
      }
      const given = Object.fromEntries(columns.map((name, at) => [name, record[at]]));
      const parsed = importedMachine.safeParse(given);
      if (!parsed.success) {
        for (const issue of parsed.error.issues) {
          problems.push({ line, column: String(issue.path[0] ?? "") || null, reason: issue.message });
        }
        continue;
      }
      const first = firstLines.get(parsed.data.asset_tag);
      if (first !== undefined) {
        problems.push({
          line,
          column: "asset_tag",
          reason: `"${parsed.data.asset_tag}" stands on line ${first} already`,
        });
        continue;
      }
      firstLines.set(parsed.data.asset_tag, line);
      machines.push({ ...parsed.data, line });
    }
    await feeding;
  } catch (error) {
    if (error instanceof TypeError)
      problems.push({ line: 1, column: null, reason: "the file is not valid UTF-8" });
    else if (typeof (error as CsvError).code === "string" && (error as CsvError).code.startsWith("CSV_")) {
      problems.push({
        line: Number((error as CsvError)["lines"] ?? 1),
        column: null,
        reason: (error as Error).message,
      });
    } else throw error;
  }
  if (columns.length === 0 && problems.length === 0) {
    problems.push({
      line: 1,
      column: null,
      reason: `the file is empty; its first line must name the columns (${REQUIRED.join(", ")})`,
    });
  }
  onProgress({ phase: "reading", rows: count });
  return { machines, columns, problems, count };
}

/** Hands the source to the parser as text; a byte order mark and broken UTF-8 are dealt with here. */
async function feed(source: AsyncIterable<string | Buffer>, parser: ReturnType<typeof parse>): Promise<void> {
  const decoder = new TextDecoder("utf-8", { fatal: true });
  try {
    for await (const chunk of source) {
      if (parser.destroyed) return;
      const text = typeof chunk === "string" ? chunk : decoder.decode(chunk, { stream: true });
      if (!parser.write(text))
        await new Promise<void>((resolve) => parser.once("drain", resolve).once("close", resolve));
    }
    decoder.decode();
    parser.end();
  } catch (error) {
    parser.destroy(error as Error);
  }
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
        column: name,
        reason: `there is no such column; known are ${known.join(", ")}`,
      })),
    ...columns
      .filter((name, at) => columns.indexOf(name) !== at)
      .map((name) => ({ line, column: name, reason: "this column stands twice in the header" })),
  ];
}

function refused(problems: readonly ImportProblem[], rows: number): ImportResult {
  const more = problems.length - MAX_PROBLEMS;
  const shown = problems.slice(0, MAX_PROBLEMS);
  const last = shown.at(-1);
  if (more > 0 && last !== undefined) {
    shown.push({ line: last.line, column: null, reason: `and ${more} more problems after this line` });
  }
  return { kind: "ImportRefused", problems: shown, rows };
}
