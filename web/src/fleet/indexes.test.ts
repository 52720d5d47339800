/** Random fleets: what follows them from delta to delta must be what is made anew of the whole fleet. */
import { expect, it } from 'vitest'
import { SeededRandom, RandomHub } from '../testing/randomHub'
import { arrange, NOW } from '../testing/samples'
import { Arranger, keyOf, SORTS, type Placed, type Sort } from './arrange'
import { FleetModel } from '../stream/fleetModel'
import { groupsOn, groupText, type Grouping } from './groups'
import { layoutMap, MapCells } from './map'
import { parseQuery } from './query'
import { keyOf as userKey, UserIndex, type ActiveUser } from '../users/users'

const SEEDS = Array.from({ length: 8 }, (_, seed) => seed)
const GROUPINGS: Grouping[] = ['host', 'model', 'user', 'label:rack']
const none = new Map<string, boolean>()

/** Calls back after each second of a random fleet that comes, goes, is renamed and divided anew. */
function follow(seed: number, look: (fleet: FleetModel) => void): void {
  const hub = new RandomHub(new SeededRandom(seed))
  const fleet = new FleetModel()
  fleet.load(hub.document(NOW))
  for (let time = NOW + 1; time < NOW + 60; time++) {
    // Now and then everything is told again, as after a lost connection.
    const delta = hub.step(time)
    if (time % 20 === 0) fleet.load(hub.document(time))
    else fleet.apply(delta)
    look(fleet)
  }
}

const places = (board: readonly Placed[]): string[] => board.map((placed) => `${keyOf(placed)} ${placed.shown.join(',')} ${placed.collapsed}`)

it.each(SEEDS)('hosts stand in the order of their names and are found by them (seed %i)', (seed) => {
  const names = new Intl.Collator('en', { numeric: true, sensitivity: 'base' })
  follow(seed, (fleet) => {
    const hosts = [...fleet.entries.values()]
    expect(fleet.byName.map(({ rank }) => rank)).toEqual(hosts.map((_, rank) => rank))
    expect(new Set(fleet.byName)).toEqual(new Set(hosts))
    for (const [at, entry] of fleet.byName.entries()) {
      if (at > 0) expect(names.compare(fleet.byName[at - 1]!.base.display_name, entry.base.display_name)).toBeLessThanOrEqual(0)
      expect(new Set(fleet.named(entry.base.name))).toEqual(new Set(hosts.filter(({ base }) => base.name === entry.base.name)))
    }
  })
})

it.each(SEEDS.flatMap((seed) => GROUPINGS.map((grouping) => [seed, grouping] as const)))('the board is the one that is arranged anew (seed %i, by %s)', (seed, grouping) => {
  const asked = ['', 'ann', '-free', 'name1'].map((text) => ({ query: parseQuery(text), arranger: new Arranger() }))
  const sorts: readonly Sort[] = SORTS
  let second = 0
  follow(seed, (fleet) => {
    const sort = sorts[Math.floor(second++ / 3) % sorts.length]!
    for (const { query, arranger } of asked) {
      const board = arranger.arrange(fleet.byName, query, sort, none, grouping)
      const anew = arrange([...fleet.byName], query, sort, none, grouping)
      expect(places(board)).toEqual(places(anew))
      expect([...groupsOn(board).values()].map(groupText)).toEqual([...groupsOn(anew).values()].map(groupText))
    }
  })
})

it.each(SEEDS)('users are those that are counted anew (seed %i)', (seed) => {
  const byKey = (users: ActiveUser[]): ActiveUser[] => users.sort((a, b) => (a.key < b.key ? -1 : 1))
  const index = new UserIndex(({ base }) => base)
  follow(seed, (fleet) => {
    const users = byKey(index.update(fleet.byName))
    expect(users).toEqual(byKey(new UserIndex(({ base }) => base).update(fleet.byName)))
    for (const each of users) expect(index.find(each.user)).toBe(each)
    expect(users.map(({ key, user }) => key === userKey(user))).not.toContain(false)
    expect(index.find('somebody else')).toBeUndefined()
  })
})

it.each(SEEDS)('the cells of the map are those that are read anew (seed %i)', (seed) => {
  const arranger = new Arranger()
  const query = parseQuery('')
  let board: readonly Placed[] = []
  let cells = new MapCells(layoutMap(board, 300, 200))
  follow(seed, (fleet) => {
    const next = arranger.arrange(fleet.byName, query, 'name', none)
    // As on the page, where figures change without the board.
    if (next.length !== board.length || next.some((placed, at) => placed !== board[at])) cells = new MapCells(layoutMap((board = next), 300, 200))
    const before = [...cells.codes]
    const changed = cells.refresh()
    const anew = new MapCells(layoutMap(board, 300, 200))
    expect([...cells.codes]).toEqual([...anew.codes])
    const isChanged = (block: (typeof changed)[number]): boolean => block.placed.shown.some((_, at) => before[block.first + at] !== cells.codes[block.first + at])
    expect(changed.filter((block) => block.placed.shown.length > 0).every(isChanged)).toBe(true)
  })
})
