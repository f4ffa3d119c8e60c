import { createHash, randomBytes } from "node:crypto";
import type { Db } from "../database/client.ts";
import { violates } from "../database/violation.ts";
import { InvalidInput } from "../refusal.ts";
import type { ApiTokenRow } from "./results.ts";
import { organizationUnknown, type TokenRole } from "./viewer.ts";

const COLUMNS = {
  id: true,
  name: true,
  role: true,
  organizationId: true,
  createdAt: true,
  expiresAt: true,
  revokedAt: true,
} as const;

/** What the database keeps of a secret. */
export function secretHash(secret: string): Uint8Array<ArrayBuffer> {
  return new Uint8Array(createHash("sha256").update(secret, "utf8").digest());
}

/** A new secret of 256 random bits, recognizable in a leak scan by its prefix. */
export function secretNew(): string {
  return `holdfast_${randomBytes(32).toString("base64url")}`;
}

/**
 * Creates a token; its secret is returned this once.
 * @throws InvalidInput when the organization is missing, unknown or not allowed for the role, or when
 *   `expiresAt` is past by the database's clock.
 */
export async function apiTokenCreate(
  db: Db,
  input: { name: string; role: TokenRole; organizationId: string | null; expiresAt: Date | null },
): Promise<{ id: string; name: string; secret: string }> {
  if (input.role === "tenant" && input.organizationId === null) {
    throw new InvalidInput("input.organizationId", "is required for a TENANT token");
  }
  if ((input.role === "operator" || input.role === "storefront") && input.organizationId !== null) {
    throw new InvalidInput(
      "input.organizationId",
      `must be left out: a ${input.role.toUpperCase()} token acts for every organization`,
    );
  }
  const secret = secretNew();
  try {
    const rows = await db.$queryRaw<{ id: string }[]>`
      INSERT INTO api_token (name, role, organization_id, secret_sha256, expires_at)
      SELECT ${input.name}, ${input.role}, ${input.organizationId}::uuid, ${secretHash(secret)}, ${input.expiresAt}::timestamptz
      WHERE ${input.expiresAt}::timestamptz IS NULL OR ${input.expiresAt}::timestamptz > clock_timestamp()
      RETURNING id`;
    const id = rows[0]?.id;
    if (id === undefined) throw new InvalidInput("input.expiresAt", "is in the past");
    return { id, name: input.name, secret };
  } catch (error) {
    if (violates(error, "api_token_organization_id_fkey")) throw organizationUnknown("input.organizationId");
    throw error;
  }
}

/**
 * Makes sure that this secret opens an OPERATOR token: the bootstrap. Twice at once: the same result.
 * A token that was revoked stays revoked.
 */
export async function apiTokenEnsure(db: Db, secret: string, name: string): Promise<void> {
  await db.$executeRaw`
    INSERT INTO api_token (name, role, secret_sha256) VALUES (${name}, 'operator', ${secretHash(secret)})
    ON CONFLICT (secret_sha256) DO NOTHING`;
}

/**
 * Revokes a token at once, in every process. Twice: the same result, with the first instant.
 * @returns null for an unknown id.
 */
export async function apiTokenRevoke(
  db: Db,
  tokenId: string,
): Promise<{ id: string; name: string; revokedAt: Date } | null> {
  const rows = await db.$queryRaw<{ id: string; name: string; revokedAt: Date }[]>`
    UPDATE api_token SET revoked_at = coalesce(revoked_at, clock_timestamp()) WHERE id = ${tokenId}::uuid
    RETURNING id, name, revoked_at AS "revokedAt"`;
  return rows[0] ?? null;
}

/** All tokens, newest first. */
export async function apiTokensList(db: Db): Promise<ApiTokenRow[]> {
  return db.apiToken.findMany({ orderBy: [{ createdAt: "desc" }, { id: "desc" }], select: COLUMNS });
}
