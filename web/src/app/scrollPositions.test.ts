import { beforeEach, expect, it } from 'vitest'
import { ScrollPositions, type Stops } from './scrollPositions'

/** A browser's history: `go` and `push` change the stop, `y` is how far the page is scrolled. */
class Way implements Stops {
  states: (object | null)[] = [null]
  at = 0
  y = 0
  saved: string | null = null

  state = (): unknown => this.states[this.at]
  mark = (state: object): void => void (this.states[this.at] = state)
  scrolled = (): number => this.y
  load = (): string | null => this.saved
  save = (text: string): void => void (this.saved = text)

  push(): void {
    this.states.splice(++this.at, Infinity, null)
  }
}

let way: Way
let places: ScrollPositions

beforeEach(() => {
  way = new Way()
  places = new ScrollPositions(way)
})

function push(y: number): number | null {
  way.push()
  const place = places.arrive()
  way.y = y
  return place
}

function go(steps: number): number | null {
  way.at += steps
  return places.arrive()
}

it('the way back and forth leads to what was seen there', () => {
  way.y = 900
  expect(push(40)).toBeNull()
  expect(push(0)).toBeNull()
  expect([go(-1), go(-1)]).toEqual([40, 900])
  way.y = 950
  expect([go(1), go(-1)]).toEqual([0, 950])
})

it('a stop that is told of twice is arrived at once', () => {
  way.y = 900
  push(0)
  expect([go(-1), go(0)]).toEqual([900, null])
})

it('a stop that takes the place of a later one begins anew', () => {
  push(700)
  go(-1)
  expect(push(0)).toBeNull()
})

it('a reload finds its place, and the stops before it', () => {
  way.y = 900
  push(333)
  places.save()
  places = new ScrollPositions(way)
  expect(places.opening).toBe(333)
  expect(go(-1)).toBe(900)
})

it('what another program left in the storage does no harm', () => {
  for (const saved of ['{', '7', '[[1,"x"],[2],null]']) {
    way.saved = saved
    expect(new ScrollPositions(way).opening).toBeNull()
  }
})

it('only the last hundred stops are remembered', () => {
  for (let stop = 0; stop < 150; stop++) push(stop)
  places.save()
  expect(JSON.parse(way.saved ?? '')).toHaveLength(100)
})
