/** What an order asks of a machine. null does not restrict. */
export interface MachineRequirements {
  readonly siteCode: string | null;
  readonly manufacturer: string | null;
  readonly model: string | null;
  readonly minCpuCores: number | null;
  readonly minMemoryGib: number | null;
  readonly minStorageGib: number | null;
  readonly labels: readonly string[] | null;
  /** true: only machines that stand in a rack; false and null do not restrict. */
  readonly installed: boolean | null;
}

/**
 * The canonical form: what does not restrict is left out, labels are sorted and named once. It is
 * what the SQL type machine_requirements is read from, and what "the same arguments" compares when
 * an idempotency key is used again.
 */
export function requirementsCanonical(requirements: MachineRequirements): Record<string, unknown> {
  const labels = [...new Set(requirements.labels ?? [])].sort();
  const entries: [string, unknown][] = [
    ["site_code", requirements.siteCode],
    ["manufacturer", requirements.manufacturer],
    ["model", requirements.model],
    ["min_cpu_cores", requirements.minCpuCores],
    ["min_memory_gib", requirements.minMemoryGib],
    ["min_storage_gib", requirements.minStorageGib],
    ["labels", labels.length === 0 ? null : labels],
    ["installed", requirements.installed === true ? true : null],
  ];
  return Object.fromEntries(entries.filter(([, value]) => value !== null));
}
