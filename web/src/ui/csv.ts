/** Tables as CSV (RFC 4180), as src/gpudeck/views/csv.py writes them: a text in it is never a formula. */
import { plain } from './format'

type Cell = string | number | null | undefined

/** What a spreadsheet takes for a formula; it passes over spaces at the front. */
const FORMULA = /^\s*[=+\-@]/
const NUMBER = /^-?\d+(\.\d+)?$/

/** Null and undefined are empty fields: unknown is not zero. */
export function writeCsv(rows: readonly (readonly Cell[])[]): string {
  return rows.map((row) => `${row.map(field).join(',')}\r\n`).join('')
}

function field(value: Cell): string {
  if (value === null || value === undefined) return ''
  if (typeof value === 'number') return Number.isFinite(value) ? String(value) : ''
  const text = plain(value.replace(/[\t\r\n]+/g, ' '))
  const safe = FORMULA.test(text) && !NUMBER.test(text) ? `'${text}` : text
  return /[",]|^\s|\s$/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe
}

/** The rows of a table as they are shown, with its heads. A cell over several columns fills the first of them. */
export function rowsOf(table: HTMLTableElement): string[][] {
  return [...table.rows].filter((row) => row.offsetParent !== null || row.getClientRects().length > 0).map((row) => [...row.cells].flatMap((cell) => [textOf(cell), ...Array<string>(Math.max(0, cell.colSpan - 1)).fill('')]))
}

function textOf(cell: HTMLTableCellElement): string {
  // Without the arrow of the column by which it is sorted.
  return cell.innerText.replace(/[▾▴]\s*$/, '').replace(/\s+/g, ' ').trim()
}

/** The name of a file: letters and numbers of the title. */
export function fileName(title: string, end: string): string {
  const words = title.toLowerCase().replace(/[^\p{L}\p{N}]+/gu, '-').replace(/^-+|-+$/g, '').slice(0, 60)
  return `${words === '' ? 'gpudeck' : words}.${end}`
}

export function saveFile(name: string, content: Blob): void {
  const address = URL.createObjectURL(content)
  const link = document.createElement('a')
  link.href = address
  link.download = name
  link.click()
  // The browser reads it after the click.
  setTimeout(() => URL.revokeObjectURL(address), 10_000)
}

/** The mark at the front tells spreadsheets that it is UTF-8. */
export function saveCsv(title: string, rows: readonly (readonly Cell[])[]): void {
  saveFile(fileName(title, 'csv'), new Blob(['\ufeff', writeCsv(rows)], { type: 'text/csv;charset=utf-8' }))
}
