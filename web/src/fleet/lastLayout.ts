/** The layout and the groups that were last chosen, kept in the browser. What an address says counts more. */
import { readAddress, writeAddress, type Address } from './address'

const KEY = 'gpudeck.board'

/** The query part of an address with what was chosen before, where it says nothing about that itself. */
export function withLastLayout(search: string, storage: () => Pick<Storage, 'getItem'> = () => localStorage): string {
  const before = readAddress(readKept(storage))
  const said = new URLSearchParams(search)
  const address = readAddress(search)
  if (!said.has('view')) address.view = before.view
  if (!said.has('group')) address.group = before.group
  return writeAddress(search, address)
}

export function rememberLayout({ view, group }: Address, storage: () => Pick<Storage, 'setItem'> = () => localStorage): void {
  try {
    storage().setItem(KEY, writeAddress('', { text: '', view, group, sort: 'free' }))
  } catch {
    // Storage may be forbidden: the choice then lasts as long as the address.
  }
}

function readKept(storage: () => Pick<Storage, 'getItem'>): string {
  try {
    return storage().getItem(KEY) ?? ''
  } catch {
    return ''
  }
}
