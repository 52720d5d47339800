import { expect, it, vi } from 'vitest'
import { drawBands } from './plot'

/** What of a canvas keeps its state as a real one does. */
class FakeCanvas {
  fillStyle = 'the colour of texts'
  readonly drawn: string[] = []
  private readonly saved: string[] = []

  save(): void {
    this.saved.push(this.fillStyle)
  }
  restore(): void {
    this.fillStyle = this.saved.pop() ?? ''
  }
  fillRect(): void {
    this.drawn.push(this.fillStyle)
  }
}

it('draws bands without changing the colour of the texts that are drawn after them', () => {
  vi.stubGlobal('devicePixelRatio', 1)
  const ctx = new FakeCanvas()
  const plot = { ctx, bbox: { left: 0, top: 0, width: 100, height: 50 }, valToPos: (time: number) => time }
  const bands = [{ start: 10, end: 20, label: 'power throttling', colour: 'tan' }]
  drawBands(plot as unknown as Parameters<typeof drawBands>[0], { bands, paint: (colour, share = 1) => `${colour} ${share}` })
  expect([ctx.drawn, ctx.fillStyle]).toEqual([['tan 0.12', 'tan 1'], 'the colour of texts'])
  vi.unstubAllGlobals()
})
