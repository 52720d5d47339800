/** What a screen on the wall shows in turn: the whole fleet, then its groups, several on a slide. */
import type { FleetModel } from '../stream/fleetModel'
import type { Availability } from '../api/types'
import { AVAILABILITIES } from '../ui/states'

export interface KioskRow {
  name: string
  counts: Record<Availability, number>
  gpus: number
}

export interface KioskSlide {
  title: string
  /** Empty: the whole fleet. */
  rows: readonly KioskRow[]
}

/** So many lines are read from five metres. */
const ROWS = 6

/** The fleet, its models, and each label that tells hosts apart. */
export function slidesOf(fleet: FleetModel, labels: readonly string[]): KioskSlide[] {
  const slides: KioskSlide[] = [{ title: 'All GPUs', rows: [] }]
  const add = (title: string, rows: readonly KioskRow[]): void => {
    for (let at = 0; at < rows.length; at += ROWS) slides.push({ title: rows.length > ROWS ? `${title}, ${at / ROWS + 1} of ${Math.ceil(rows.length / ROWS)}` : title, rows: rows.slice(at, at + ROWS) })
  }
  add('By model', countBy(fleet, (_, model) => model))
  for (const label of labels) {
    const rows = countBy(fleet, (labelled) => labelled[label] ?? null)
    if (rows.length > 1) add(`By ${label}`, rows)
  }
  return slides
}

const none = (): KioskRow['counts'] => Object.fromEntries(AVAILABILITIES.map((state) => [state, 0])) as KioskRow['counts']

/** The most GPUs first. */
function countBy({ byName }: FleetModel, nameOf: (labels: Readonly<Record<string, string>>, model: string) => string | null): KioskRow[] {
  const rows = new Map<string, KioskRow>()
  for (const { untracked: host } of byName) {
    for (const gpu of host.gpus) {
      const name = nameOf(host.labels, gpu.display_name)
      if (name === null) continue
      let row = rows.get(name)
      if (row === undefined) rows.set(name, (row = { name, gpus: 0, counts: none() }))
      row.gpus += 1
      row.counts[gpu.availability] += 1
    }
  }
  return [...rows.values()].sort((a, b) => b.gpus - a.gpus || (a.name < b.name ? -1 : 1))
}
