/** The view in the address, so that it can be shared and survives a reload: `?q=free+h200&view=table&sort=name&group=model`. */
import { SORTS, type Sort } from './arrange'
import { readGrouping, type Grouping } from './groups'
import { VIEWS, type View } from './moves'

export interface Address {
  text: string
  /** Null leaves the choice to the size of the fleet. */
  view: View | null
  sort: Sort
  group: Grouping
}

export function readAddress(search: string): Address {
  const parameters = new URLSearchParams(search)
  const sort = SORTS.find((known) => known === parameters.get('sort'))
  return {
    text: parameters.get('q') ?? '',
    view: VIEWS.find((known) => known === parameters.get('view')) ?? null,
    sort: sort ?? 'free',
    group: readGrouping(parameters.get('group')),
  }
}

/** The query part for this view, from the one in the address now: parameters that are not ours stay. */
export function writeAddress(search: string, address: Address): string {
  const parameters = new URLSearchParams(search)
  put(parameters, 'q', address.text.trim())
  put(parameters, 'view', address.view ?? '')
  put(parameters, 'sort', address.sort === 'free' ? '' : address.sort)
  put(parameters, 'group', address.group === 'host' ? '' : address.group)
  const written = parameters.toString()
  return written === '' ? '' : `?${written}`
}

function put(parameters: URLSearchParams, name: string, value: string): void {
  if (value === '') parameters.delete(name)
  else parameters.set(name, value)
}
