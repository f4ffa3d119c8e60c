import { z } from "zod";
import { InvalidInput } from "../refusal.ts";

/** Relay's paging arguments as they arrive. */
export interface PageArguments {
  readonly first?: number | null | undefined;
  readonly after?: string | null | undefined;
  readonly last?: number | null | undefined;
  readonly before?: string | null | undefined;
}

/** A page to read: rows strictly between two keys of the list's order. */
export interface Page<Key> {
  /** Rows wanted, 0 to 1000. */
  readonly size: number;
  /** false: the last rows before `before`, still returned in the list's order. */
  readonly forward: boolean;
  readonly after: Key | null;
  readonly before: Key | null;
}

/** What a Pothos connection field returns. */
export interface Connection<Node> {
  readonly edges: readonly { readonly cursor: string; readonly node: Node }[];
  readonly pageInfo: {
    readonly hasNextPage: boolean;
    readonly hasPreviousPage: boolean;
    readonly startCursor: string | null;
    readonly endCursor: string | null;
  };
  readonly totalCount: () => Promise<number>;
}

/** Rows that one request may ask for in all. Literals and variables count alike, aliases each. */
const ROWS_PER_REQUEST = 20_000;

/** What is left of a request's rows. */
export interface RowBudget {
  /** @throws InvalidInput naming `field` when the request asks for more than there is. */
  take(rows: number, field: string): void;
}

/** A request's rows, whole. */
export function rowBudget(): RowBudget {
  let left = ROWS_PER_REQUEST;
  return {
    take(rows, field) {
      left -= rows;
      if (left < 0) {
        throw new InvalidInput(
          field,
          `the request asks for more than ${ROWS_PER_REQUEST} rows in all; send several`,
        );
      }
    },
  };
}

const DEFAULT_SIZE = 50;
const MAX_SIZE = 1000;

/**
 * A list's cursors. A cursor carries the row's place in the list's order, not the row: paging goes on
 * when that row is deleted or changes. It also carries the list and whose list it is, so that one of
 * another list, or of another organization, is refused rather than misread.
 */
export interface Cursors<Key> {
  encode(key: Key): string;
  /** Draws the page's size from the request's rows. @throws InvalidInput for a negative size, `first` beside `last`, and every cursor that this list did not make. */
  page(args: PageArguments, rows: RowBudget): Page<Key>;
}

/**
 * @param list name of the list, e.g. `machines`.
 * @param owner whose list it is: an organization's id, or `*`.
 * @param key schema of the key.
 */
export function cursorsOf<Key>(list: string, owner: string, key: z.ZodType<Key>): Cursors<Key> {
  const cursor = z.tuple([z.literal(list), z.literal(owner), key]);
  const decode = (field: string, value: string | null | undefined): Key | null => {
    if (value === null || value === undefined) return null;
    try {
      return cursor.parse(JSON.parse(Buffer.from(value, "base64url").toString("utf8")))[2] as Key;
    } catch {
      throw new InvalidInput(
        field,
        "is not a cursor of this list; send one that this list returned, or leave it out",
      );
    }
  };
  return {
    encode: (value) => Buffer.from(JSON.stringify([list, owner, value])).toString("base64url"),
    page(args, rows) {
      for (const field of ["first", "last"] as const) {
        if ((args[field] ?? 0) < 0) throw new InvalidInput(field, "must be at least 0");
      }
      if (typeof args.first === "number" && typeof args.last === "number") {
        throw new InvalidInput("last", "cannot be combined with first");
      }
      const size = Math.min(args.first ?? args.last ?? DEFAULT_SIZE, MAX_SIZE);
      rows.take(size, typeof args.last === "number" ? "last" : "first");
      return {
        size,
        forward: typeof args.last !== "number",
        after: decode("after", args.after),
        before: decode("before", args.before),
      };
    },
  };
}

/**
 * Builds a connection from the rows of a page.
 * @param rows read in the page's direction, one more than `page.size` if there are more.
 */
export function connectionOf<Row, Key>(
  cursors: Cursors<Key>,
  page: Page<Key>,
  rows: readonly Row[],
  keyOf: (row: Row) => Key,
  totalCount: () => Promise<number>,
): Connection<Row> {
  const more = rows.length > page.size;
  const kept = rows.slice(0, page.size);
  if (!page.forward) kept.reverse();
  const edges = kept.map((node) => ({ cursor: cursors.encode(keyOf(node)), node }));
  return {
    edges,
    pageInfo: {
      hasNextPage: page.forward ? more : page.before !== null,
      hasPreviousPage: page.forward ? page.after !== null : more,
      startCursor: edges[0]?.cursor ?? null,
      endCursor: edges.at(-1)?.cursor ?? null,
    },
    totalCount,
  };
}

/** The descriptions that every connection field shares. */
export const PAGING =
  "`first`/`after` page forward, `last`/`before` backward; 50 rows by default and 1000 at the most.";
