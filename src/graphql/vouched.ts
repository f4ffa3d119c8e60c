/**
 * A row that a foreign key and the viewer's sight of its parent vouch for.
 * @throws Error when it is missing: the loaders and the sight disagree, which is a bug.
 */
export function vouched<Row>(row: Row | null): Row {
  if (row === null) throw new Error("a row that a foreign key vouches for is out of sight");
  return row;
}
