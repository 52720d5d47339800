/** Random fleets, told once as deltas and once as a snapshot: the page must hold the same. */
import { expect, it } from 'vitest'
import { SeededRandom, RandomHub } from '../testing/randomHub'
import { NOW } from '../testing/samples'
import { FleetModel } from './fleetModel'

const contents = (model: FleetModel) => Object.fromEntries([...model.entries].map(([id, entry]) => [id, { host: entry.host, summary: entry.summary, inventory: entry.inventory }]))

it.each(Array.from({ length: 12 }, (_, seed) => seed))('deltas lead to what a snapshot says (seed %i)', (seed) => {
  const hub = new RandomHub(new SeededRandom(seed))
  const followed = new FleetModel()
  followed.load(hub.document(NOW))
  for (let time = NOW + 1; time < NOW + 40; time++) {
    expect(followed.apply(hub.step(time)).fits).toBe(true)
    const fresh = new FleetModel()
    fresh.load(hub.document(time))
    expect(contents(followed)).toEqual(contents(fresh))
  }
})
