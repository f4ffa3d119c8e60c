import type pg from "pg";

/**
 * The walk that design §2 forbids: it locks every candidate at once and takes the first. Kept as the
 * proof that the tests of the right one can see the difference: whoever comes second finds everything
 * locked and goes away, although machines stay free.
 * @param locked awaited while the set is locked, so that a test can let all orders get there.
 * @returns whether a machine was reserved.
 */
export async function wrongReserve(
  client: pg.ClientBase,
  organizationId: string,
  key: string,
  locked: () => Promise<void>,
): Promise<boolean> {
  await client.query("BEGIN");
  const { rows } = await client.query<{ id: string }>(
    `SELECT id FROM machine WHERE status = 'ready' AND occupancy = 'free'
     ORDER BY cpu_cores, memory_gib, storage_gib, id FOR UPDATE SKIP LOCKED`,
  );
  await locked();
  const first = rows[0];
  if (first !== undefined) {
    await client.query(
      `INSERT INTO reservation (organization_id, machine_id, order_reference, idempotency_key, requirements, held_at, hold_seconds, expires_at, choice)
       VALUES ($1, $2, 'wrong', $3, '{}', now(), 900, now() + interval '900 seconds', '{}')`,
      [organizationId, first.id, key],
    );
  }
  await client.query("COMMIT");
  return first !== undefined;
}
