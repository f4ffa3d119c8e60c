// Reads of reservations and bindings as they are now. Locks nothing.
import type { Sight } from "../../access/viewer.ts";
import type { Db } from "../../database/client.ts";
import { Prisma } from "../../database/prisma/client.ts";
import type { Page } from "../../graphql/connection.ts";
import { BINDING_COLUMNS, type BindingRow, RESERVATION_COLUMNS, type ReservationRow } from "../rows.ts";
import type { ReservationState } from "../states.ts";

/** Reservations by id within sight; others are absent. */
export async function reservationsByIds(
  db: Db,
  sight: Sight,
  ids: readonly string[],
): Promise<ReservationRow[]> {
  if (sight.kind === "none") return [];
  return db.$queryRaw<ReservationRow[]>`
    /* reservations_by_ids */
    SELECT ${RESERVATION_COLUMNS} FROM reservation_now r
    WHERE r.id = ANY(${[...ids]}::uuid[])
      AND (${organizationOf(sight)}::uuid IS NULL OR r.organization_id = ${organizationOf(sight)}::uuid)`;
}

/** Bindings by id, or by the reservation they came from, within sight; others are absent. */
export async function bindingsBy(
  db: Db,
  sight: Sight,
  by: "id" | "reservationId",
  ids: readonly string[],
): Promise<BindingRow[]> {
  if (sight.kind === "none") return [];
  const column = by === "id" ? Prisma.sql`b.id` : Prisma.sql`b.reservation_id`;
  return db.$queryRaw<BindingRow[]>`
    SELECT ${BINDING_COLUMNS} FROM service_binding b
    WHERE ${column} = ANY(${[...ids]}::uuid[])
      AND (${organizationOf(sight)}::uuid IS NULL OR b.organization_id = ${organizationOf(sight)}::uuid)`;
}

/** An organization's live holds, the one that ends first in front. */
export async function reservationsHeldBy(db: Db, organizationId: string): Promise<ReservationRow[]> {
  return db.$queryRaw<ReservationRow[]>`
    SELECT ${RESERVATION_COLUMNS} FROM reservation_now r
    WHERE r.organization_id = ${organizationId}::uuid AND r.state = 'held'
    ORDER BY r.expires_at, r.id`;
}

/** What a used key stands for: the reservation, and whether it was made with these arguments. */
export interface KeyRow {
  readonly reservation: ReservationRow;
  readonly sameArguments: boolean;
}

/** Asks for a key; a statement of its own, so that what was committed a moment ago is seen. */
export async function reservationByKey(
  db: Db,
  organizationId: string,
  idempotencyKey: string,
  orderReference: string,
  requirements: Record<string, unknown>,
): Promise<KeyRow | null> {
  const rows = await db.$queryRaw<(ReservationRow & { sameArguments: boolean })[]>`
    /* reservation_by_key */
    SELECT ${RESERVATION_COLUMNS},
           (r.order_reference = ${orderReference} AND r.requirements = ${JSON.stringify(requirements)}::jsonb) AS "sameArguments"
    FROM reservation_now r
    WHERE r.organization_id = ${organizationId}::uuid AND r.idempotency_key = ${idempotencyKey}`;
  if (rows[0] === undefined) return null;
  const { sameArguments, ...reservation } = rows[0];
  return { reservation, sameArguments };
}

/** Place in the list of reservations, newest first: microseconds since 1970 (as text), then the id. */
export type ReservationKey = [heldAtMicros: string, id: string];

/** A reservation with its place in the list. */
export interface ListedReservation extends ReservationRow {
  readonly heldAtMicros: string;
}

/** Which reservations to list; null does not restrict. */
export interface ReservationFilter {
  readonly state: ReservationState | null;
  readonly organizationId: string | null;
}

/** A page of reservations within sight, newest first; one more than asked for if there are more. */
export async function reservationsPage(
  db: Db,
  filter: ReservationFilter,
  page: Page<ReservationKey>,
): Promise<ListedReservation[]> {
  const direction = page.forward ? Prisma.sql`DESC` : Prisma.sql`ASC`;
  return db.$queryRaw<ListedReservation[]>`
    SELECT ${RESERVATION_COLUMNS}, (extract(epoch FROM r.held_at) * 1000000)::bigint::text AS "heldAtMicros"
    FROM reservation_now r
    WHERE ${matching(filter)}
      AND ${page.after === null ? Prisma.sql`true` : Prisma.sql`(r.held_at, r.id) < ${place(page.after)}`}
      AND ${page.before === null ? Prisma.sql`true` : Prisma.sql`(r.held_at, r.id) > ${place(page.before)}`}
    ORDER BY r.held_at ${direction}, r.id ${direction}
    LIMIT ${page.size + 1}`;
}

export async function reservationsCount(db: Db, filter: ReservationFilter): Promise<number> {
  const rows = await db.$queryRaw<{ total: number }[]>`
    SELECT count(*)::integer AS total FROM reservation_now r WHERE ${matching(filter)}`;
  return rows[0]?.total ?? 0;
}

// Microseconds, because a JavaScript Date would cut them off and skip rows of one millisecond.
function place([micros, id]: ReservationKey): Prisma.Sql {
  return Prisma.sql`('epoch'::timestamptz + ${micros}::bigint * interval '1 microsecond', ${id}::uuid)`;
}

function matching(filter: ReservationFilter): Prisma.Sql {
  return Prisma.sql`(${filter.state}::text IS NULL OR r.state = ${filter.state}::text)
    AND (${filter.organizationId}::uuid IS NULL OR r.organization_id = ${filter.organizationId}::uuid)`;
}

function organizationOf(sight: Sight): string | null {
  return sight.kind === "organization" ? sight.organizationId : null;
}
